"""Engine `endpoint`: a server with OpenAI's completions API."""
