"""Write a GGUF checkpoint as a folder; everything but its weights can come from another folder.

    python teacher_folder.py TEACHER.gguf OUT [CARRIED]

The folder is the same on every host: versions of transformers read other special tokens from GGUF files, and
state themselves in config.json.
"""

import shutil
import sys
from pathlib import Path

from evalsuite.models.checkpoints.fingerprint import weights_id
from evalsuite.models.checkpoints.load import load_checkpoint


def main(gguf: Path, out: Path, carried: Path | None = None) -> None:
    """Write the folder, and print its `weights_id`."""
    loaded = load_checkpoint(gguf, as_decoder=False)
    loaded.model.save_pretrained(out)
    loaded.tokenizer.save_pretrained(out)
    if carried is not None:
        for file in out.iterdir():
            if file.suffix != ".safetensors":
                file.unlink()
        for file in carried.iterdir():
            shutil.copy(file, out)
    print(out, weights_id(out))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
