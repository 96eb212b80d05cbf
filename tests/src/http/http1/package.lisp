;;;; Tests of clgrpc.http1; each file mirrors one of src/http/http1/.

(defpackage #:clgrpc.tests.http1
  (:use #:cl #:clgrpc.base #:clgrpc.http1 #:clgrpc.tests.form)
  (:local-nicknames (#:http1 #:clgrpc.http1) (#:hpack #:clgrpc.hpack)))
