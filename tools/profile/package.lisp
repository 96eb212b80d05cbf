;;;; `clgrpc profile`: where the time of a process goes, and what it waits for. What perf says of
;;;; samples and system calls is parsed and put to the account of subsystems and phases of a call;
;;;; Lisp functions have their names from a table that each image can write of itself.

(defpackage #:clgrpc.profile
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:grpc #:clgrpc) (#:loop #:clgrpc.loop) (#:server #:clgrpc.server)
                    (#:page #:clgrpc.page)
                    (#:client #:clgrpc.client))
  (:export
   ;; symbol.lisp
   #:write-perf-map
   ;; agent.lisp
   #:start-agent-if-asked #:take-census #:kind-of
   ;; run.lisp
   #:profile #:profile-error
   ;; text.lisp
   #:write-profile #:read-profile
   ;; compare.lisp
   #:write-difference #:difference-data
   ;; html.lisp
   #:write-profile-page))
