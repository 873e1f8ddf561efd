"""hybridfl on Flower: the algorithms of the simulator, unchanged, on real machines. Needs `pip install "hybridfl[flower]"`."""

from hybridfl.flower.client import client_app
from hybridfl.flower.configured import deployment_of, part_of
from hybridfl.flower.deployment import Deployment
from hybridfl.flower.server import serve, server_app
from hybridfl.flower.transport import FlowerTransport, Patience

__all__ = [
    "Deployment",
    "FlowerTransport",
    "Patience",
    "client_app",
    "deployment_of",
    "part_of",
    "serve",
    "server_app",
]
