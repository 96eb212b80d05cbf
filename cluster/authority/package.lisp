;;;; The permissions of a cluster's services. Identities, which certificates prove, have roles; a
;;;; role permits calls. The files, from the ground up: identities of a peer; patterns of
;;;; identities; roles.

(defpackage #:clgrpc.authority
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os) (#:rpc #:clgrpc.rpc))
  (:export
   ;; identity.lisp
   #:certificate-identities #:call-identity
   ;; role.lisp
   #:authority #:authority-p #:make-authority #:check-permission #:access-refusal
   #:authority-warning))
