"""Read the formats of Aiven's tiered-storage plugin: manifests, chunks, encryption. Bytes in, values out."""
