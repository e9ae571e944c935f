"""A mail server of aiosmtpd: server.py starttls|tls CERT KEY. Prints its port, then each mail that it took, as JSON lines."""
import asyncio, email, email.policy, json, ssl, sys
from aiosmtpd.smtp import SMTP, AuthResult

mode, cert, key = sys.argv[1:]
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(cert, key)


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody@"):
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        print(json.dumps({
            "from": envelope.mail_from, "to": envelope.rcpt_tos, "tls": session.ssl is not None or mode == "tls",
            "login": session.auth_data, "method": session.auth_method if hasattr(session, "auth_method") else "",
            "headers": {k: str(v) for k, v in mail.items()}, "defects": [str(d) for d in mail.defects],
            "kind": mail.get_content_type(), "parts": [[p.get_content_type(), p.get_content()] for p in (mail.iter_parts() if mail.is_multipart() else [mail])],
        }), flush=True)
        return "250 2.0.0 taken"


def authenticate(server, session, envelope, mechanism, data):
    session.auth_method = mechanism
    login, password = data.login.decode(), data.password.decode()
    ok = (login, password) == ("relay", "s3cret pässword")
    return AuthResult(success=ok, handled=ok, auth_data=login)


def protocol():
    return SMTP(Handler(), authenticator=authenticate, auth_required=True, auth_require_tls=mode == "starttls",
                require_starttls=mode == "starttls", tls_context=context if mode == "starttls" else None, hostname="mail.example.com")


async def main():
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=context if mode == "tls" else None)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the test is over


asyncio.run(main())
