"""PNG, JPEG and WebP files as pixels: one meaning for training and serving."""
