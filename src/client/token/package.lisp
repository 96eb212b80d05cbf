;;;; Tokens that identify the caller, as call credentials: from a file, signed by the client, or
;;;; requested over HTTP.

(defpackage #:clgrpc.token
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:http1 #:clgrpc.http1)
                    (#:option #:clgrpc.option)
                    (#:calling #:clgrpc.calling) (#:credentials #:clgrpc.credentials)
                    (#:status #:clgrpc.status)
                    (#:client #:clgrpc.client))
  (:export
   ;; http-request.lisp, for the command
   #:http-request #:parse-url #:url-text
   ;; bearer-token.lisp
   #:bearer-token
   ;; token-credentials.lisp
   #:token-credentials #:fetch-token
   ;; web-token.lisp
   #:self-signed-token
   ;; token-file.lisp
   #:token-file
   ;; token-exchange.lisp
   #:client-token #:exchanged-token))
