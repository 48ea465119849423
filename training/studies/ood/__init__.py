"""Rows from elsewhere: does the energy tell them, and do two baselines?"""
