"""Images: headers, decoding, encoding."""
