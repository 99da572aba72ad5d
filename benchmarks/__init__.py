"""Benchmarks: scripts that measure speed, memory and usefulness. A package of this name also comes with Opacus."""
