"use strict";
// Base64 of gzip → text; throws in browsers without DecompressionStream.
globalThis.evalsuiteUnpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};
