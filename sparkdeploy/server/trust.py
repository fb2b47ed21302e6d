"""Trusted certificates (the system's, or those of a file) and connection errors."""

import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from sparkdeploy.errors import UsageError

UNTRUSTED = "its certificate is not trusted"
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
CA_HINT = "a private CA's certificate is named in the variable: SSL_CERT_FILE=FILE.pem"


def ca_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file of trusted certificates, None for the system's; UsageError for a bad one."""
    variables = (Path(value) for name in CA_VARIABLES if (value := environment.get(name)))
    path = next(variables, None)
    if path is not None:
        ssl_context(path)
    return path


def ssl_context(path: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # an SSLError is one, too
        reason = "it has no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"the certificates {path} cannot be read: {reason}") from error


def connection_error(error: BaseException) -> str:
    """Return why there is no connection; empty where that is unknown."""
    seen: set[int] = set()
    reason = ""
    pending: list[object] = [error]
    while pending:
        cause = pending.pop()
        if not isinstance(cause, BaseException) or id(cause) in seen:
            continue
        seen.add(id(cause))
        reason = _reason(cause) or reason
        # Libraries put the cause into the arguments, a field or the chain.
        pending += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]
    return reason


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{UNTRUSTED}: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'no reason given').replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    if isinstance(error, OSError) and isinstance(error.strerror, str):
        return error.strerror
    return ""
