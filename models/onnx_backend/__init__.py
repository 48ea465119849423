"""The relaxation step as an ONNX graph, run by ONNX Runtime."""
