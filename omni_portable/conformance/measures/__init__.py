"""What checks measure with, where it is more than a few lines; these modules may import torch."""
