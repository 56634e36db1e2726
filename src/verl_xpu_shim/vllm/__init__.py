"""What the shim adds to vLLM. Imported only in a process that has imported vLLM itself."""
