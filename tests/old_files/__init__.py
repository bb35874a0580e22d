"""Files that earlier versions left on disks."""
