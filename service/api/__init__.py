"""Every API of the service, a file or folder each, and the one table of their routes."""

from service.api import operations
from service.api.dialect import Route

ROUTES: tuple[Route, ...] = operations.OPERATIONS
