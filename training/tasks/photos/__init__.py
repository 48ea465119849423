"""Windows of photographs completed by a prefill and a learned residual: ET beside a ViT."""
