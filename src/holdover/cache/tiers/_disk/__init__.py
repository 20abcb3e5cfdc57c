"""The parts of the disk tier: files of slots in a directory that several servers may share."""
