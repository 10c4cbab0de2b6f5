"""Addresses of this view."""

from fastapi import APIRouter

router = APIRouter()
