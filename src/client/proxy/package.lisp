;;;; Connections through proxies.

(defpackage #:clgrpc.proxy
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop))
  (:export
   ;; proxy-choice.lisp
   #:find-proxy #:proxy-target #:proxy-key
   ;; tunnel.lisp
   #:make-tunnel-byte-channel))
