"""The server: an algorithm of hybridfl on whoever is there."""

from flwr.app import Context

from hybridfl.flower import Deployment, deployment_of, server_app
from hybridfl_app.task import model_and_test


def build(context: Context) -> Deployment:
    """As pyproject.toml and `flwr run --run-config` say."""
    model, test = model_and_test(context)
    return deployment_of(context, model, test)


app = server_app(build)
