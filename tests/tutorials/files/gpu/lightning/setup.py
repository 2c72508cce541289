from setuptools import setup

setup(name="lightning", version="1.0", packages=["lightning"], install_requires=["torch"])
