;;;; Who may do what at the services of a cluster: roles, given to the identities that certificates
;;;; prove. The files, from the ground up: identities of a peer; patterns of identities; roles.

(defpackage #:clgrpc.authority
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os) (#:rpc #:clgrpc.rpc))
  (:export
   ;; identity.lisp
   #:certificate-identities #:call-identity
   ;; role.lisp
   #:authority #:authority-p #:make-authority #:check-permission #:access-refusal
   #:authority-warning))
