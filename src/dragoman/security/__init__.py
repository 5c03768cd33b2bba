"""Credentials, keys, TLS and callback URLs: adapters around maintained libraries. No decisions about tasks."""
