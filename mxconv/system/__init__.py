"""What operating systems do differently: one matter a file, each with what to do where the system cannot."""
