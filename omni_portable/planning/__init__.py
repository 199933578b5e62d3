"""Static resolution of recipe x device, without hardware and without torch."""
