;;;; HTTP/1.1 (RFC 9112 and 9110): requests and responses as octets, without I/O, clock or threads.
;;;; A PARSER takes a peer's octets and returns the parts of its messages, for a server or for a
;;;; client; the writer makes the octets of heads and chunks. Fields are those of HPACK, in lower
;;;; case, so that upper layers read the fields of HTTP/1.1 and of HTTP/2 by the same functions.
;;;;
;;;; The parser is strict wherever request smuggling is possible: a message that two implementations
;;;; might understand differently is an error, which ends the use of the connection.
;;;;
;;;; The files in their order: error; syntax (the valid octets of each part); message (the data of a
;;;; head); head (its lines); framing (the end of a body); chunk; parser; writer; preference (accept
;;;; and the like).

(defpackage #:clgrpc.http1
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:when-let)
  (:local-nicknames (#:hpack #:clgrpc.hpack))
  (:import-from #:sb-ext #:freeze-type)
  (:export
   ;; http1-error.lisp
   #:http1-error #:http1-error-status #:http1-error-text
   ;; syntax.lisp
   #:header-name-p #:token-p
   ;; preference.lisp
   #:do-preferences
   ;; body-framing.lisp
   #:bodiless-p
   ;; message-head.lisp
   #:message #:message-http-method #:message-target #:message-status #:message-reason
   #:message-minor #:message-fields #:message-body #:message-persistent-p #:message-expects-p
   #:message-octets #:message-memo #:find-field
   ;; http1-parser.lisp
   #:parser #:make-parser #:parse #:parse-end #:next-message #:expect-response #:parser-message
   #:parser-body-start #:parser-body-end #:parser-trailers #:parser-begun-p #:parser-octets
   ;; head-writer.lisp
   #:write-request-head #:write-response-head #:response-head-octets #:last-head-octets
   #:append-framed-fields #:write-chunk #:write-last-chunk))
