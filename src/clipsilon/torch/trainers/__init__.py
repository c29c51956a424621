"""Private training inside the training loops of other libraries; each module needs the library it is named after."""
