"""The report of a run as one HTML page, and an index over several. Judges nothing: what the checks
found comes in as `verdict.Report`. Nothing is imported here, so that `index.py` needs no Spark.
"""
