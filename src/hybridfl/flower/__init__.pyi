from .client import client_app as client_app
from .configured import deployment_of as deployment_of
from .configured import part_of as part_of
from .deployment import Deployment as Deployment
from .patience import Patience as Patience
from .server import serve as serve
from .server import server_app as server_app
from .transport import FlowerTransport as FlowerTransport
