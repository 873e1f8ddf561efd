"""What stands before a SuperLink: its port serves devices and operators alike, and asks operators for no password."""

from __future__ import annotations

import re
from pathlib import Path

from cryptography import x509

from hybridfl.errors import InputError

TEMPLATE = """\
# Written by `hybridfl deploy proxy`. Devices reach the fleet's paths of a SuperLink through this, and nothing more:
# whoever could reach its control paths could start runs and register devices. Let the SuperLink listen on 127.0.0.1 only.
worker_processes auto;
worker_rlimit_nofile 16384;
pid "{state}/nginx.pid";
error_log "{state}/error.log" warn;

events {{
    worker_connections 4096;
}}

http {{
    access_log "{state}/access.log";
    client_body_temp_path "{state}/body";
    proxy_temp_path "{state}/proxy";
    fastcgi_temp_path "{state}/fastcgi";
    uwsgi_temp_path "{state}/uwsgi";
    scgi_temp_path "{state}/scgi";
    server_tokens off;

    # A device polls once or twice a second, and uploads a model in pieces.
    limit_req_zone $binary_remote_addr zone=devices:10m rate=50r/s;
    limit_conn_zone $binary_remote_addr zone=connections:10m;

    server {{
        listen {listen} ssl;
        ssl_certificate "{certificates}/server.crt";
        ssl_certificate_key "{certificates}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size {largest};

        # As it was sent, before it is decoded and its dots are resolved: that is what the SuperLink gets to see.
        if ($request_uri !~ ^/v1/fleet/[a-z/-]+$) {{
            return 403;
        }}

        location /v1/fleet/ {{
            limit_req zone=devices burst=200 nodelay;
            limit_conn connections 100;
            proxy_pass https://{superlink};
            proxy_http_version 1.1;
            proxy_request_buffering off;  # nothing of a model touches the disk here, which workers may not write to
            proxy_buffering off;
            proxy_set_header Host $host;
            proxy_ssl_trusted_certificate "{certificates}/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name {superlink_name};
            proxy_read_timeout 300s;
            proxy_send_timeout 300s;
        }}

        # control, runtime, health, documentation: not for devices
        location / {{
            return 403;
        }}
    }}
}}
"""


_ADDRESS = r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\])"
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"


def _check(name: str, value: str, form: str, example: str) -> None:
    """What goes into a configuration must not be able to say anything else there."""
    if re.fullmatch(form, value) is None:
        raise InputError(f"{name} {value!r} is not of the form that nginx wants: give {example}.")


def _name_in(certificate: Path) -> str:
    """A host name the certificate is good for: nginx compares names only, never addresses."""
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, OSError, x509.ExtensionNotFound) as error:
        raise InputError(f"'{certificate}' is no server's certificate ({error}).") from None
    found = names.get_values_for_type(x509.DNSName)
    if not found:
        raise InputError(
            f"'{certificate}' is good for addresses only: make one with a name, `--host localhost` for example."
        )
    return str(found[0])


def nginx_config(
    certificates: Path, state: Path, listen: str = "8443", superlink: str = "127.0.0.1:8000", largest: str = "64m"
) -> str:
    """A configuration for `nginx -c`, which keeps its logs and temporary files in `state`."""
    _check("listen", listen, rf"({_ADDRESS}:)?{_PORT}", "8443 or 10.0.0.7:8443")
    _check("superlink", superlink, rf"{_ADDRESS}:{_PORT}", "127.0.0.1:8000")
    _check("largest", largest, r"[0-9]+[kKmMgG]?", "64m")
    for folder in (certificates, state):
        _check("folder", str(folder.resolve()), r'[^"$\\\n]+', "a path without quotes, $ and backslashes")
    return TEMPLATE.format(
        certificates=certificates.resolve(),
        state=state.resolve(),
        listen=listen,
        superlink=superlink,
        superlink_name=_name_in(certificates / "server.crt"),
        largest=largest,
    )
