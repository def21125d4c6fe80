"""The Open Inference Protocol v2, with binary tensors."""

from service.api.open_inference.call import ROUTES as ROUTES
