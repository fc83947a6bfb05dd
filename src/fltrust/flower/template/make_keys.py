"""Makes what TLS and node authentication need, in the folder keys.

python make_keys.py server HOST ...   on the server: server.crt, which every node gets a copy of, and server.key, which nobody gets;
                                      HOST: the names and addresses under which the nodes reach it
python make_keys.py node NAME ...     on a node's own host: NAME, its private key, which never leaves it, and NAME.pub, to be registered
"""

import datetime
import ipaddress
import os
import re
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

FOLDER = Path("keys")
CURVE = ec.SECP384R1()  # P-384, one of those that Flower takes


def server(hosts: list[str]) -> None:
    """A certificate that signs itself: whoever trusts this one file trusts this server and no other."""
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
    today = datetime.datetime.now(datetime.UTC)
    everywhere = dict.fromkeys([*hosts, "localhost", "127.0.0.1"])  # the SuperLink's own processes reach it at 127.0.0.1
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signs = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, encipher_only=False, decipher_only=False, **signs)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(public, critical=False)
        .add_extension(x509.SubjectAlternativeName([address_or_name(host) for host in everywhere]), critical=False)
        .sign(key, hashes.SHA384())
    )
    write("server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), secret=True)
    write("server.crt", certificate.public_bytes(Encoding.PEM))


def node(name: str) -> None:
    key = ec.generate_private_key(CURVE)
    write(name, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True)
    write(name + ".pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def address_or_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write(name: str, content: bytes, *, secret: bool = False) -> None:
    """Inside the folder and never over a key that is there; a secret is its owner's alone from the first moment."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        sys.exit(f"{name!r} cannot be a file in {FOLDER}: use letters, digits, '.', '_' and '-'")
    if FOLDER.is_symlink():
        sys.exit(f"{FOLDER} is a link to another place: remove it")
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    try:
        opened = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    except FileExistsError:
        sys.exit(f"{FOLDER / name} is there already")
    with os.fdopen(opened, "wb") as file:
        file.write(content)
    print(FOLDER / name)


match sys.argv[1:]:
    case ["server", *hosts] if hosts:
        server(hosts)
    case ["node", *names] if names:
        for each in names:
            node(each)
    case _:
        sys.exit(__doc__)
