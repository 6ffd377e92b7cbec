"""One file a device: cpu, cuda, npu and the emulated npu, behind one protocol."""
