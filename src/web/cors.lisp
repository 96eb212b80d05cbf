;;;; Pages of other origins (the Fetch standard, "CORS protocol"). Only origins that the server was
;;;; given may call, compared octet for octet; with :any all origins may, but without credentials.
;;;; An answer to a page of a permitted origin exposes the headers that the answer has. A request of
;;;; another page is answered without the CORS headers, so browsers keep the answer from that page.
;;;; No request that a page may send without a preflight reaches a handler with effects: the content
;;;; types of all protocols here need one.

(in-package #:clgrpc.web)

(defparameter *preflight-seconds* "7200" "How long browsers may keep the answer to a preflight.")

(defparameter *preflight-vary*
  "origin, access-control-request-method, access-control-request-headers"
  "The headers that the answer to a preflight depends on.")

(defun origin-headers (origins fields)
  "The headers, an alist, for pages of the origin in FIELDS, a request's; nil without an origin, or
if ORIGINS, those of START-SERVER, do not allow it."
  (let ((origin (and origins (header-value fields "origin"))))
    (cond ((null origin) '())
          ((eq :any origins) '(("access-control-allow-origin" . "*")))
          ((find origin origins :test #'string=)
           `(("access-control-allow-origin" . ,origin)
             ("access-control-allow-credentials" . "true")))
          (t '()))))

(defconstant +preflight-characters+ 1024
  "The maximum number of characters of requested headers that a preflight may have. A page that
requests more is refused, because the answer repeats them.")

(define-hot token-list-p ((text simple-string)) boolean
  "True if TEXT may be a list of names of headers."
  (and (<= (length text) +preflight-characters+)
       (with-text-type (text)
         (loop for char across text
               always (or (char<= #\a char #\z) (char<= #\A char #\Z) (char<= #\0 char #\9)
                          (member char '(#\- #\_ #\. #\, #\Space)))))))

(defun preflight (origins fields http-methods)
  "The answer to a preflight with FIELDS for a path that takes HTTP-METHODS, strings; nil if the
request is not a preflight, or asks for another method. ORIGINS are as for START-SERVER."
  (let ((asked (header-value fields "access-control-request-method"))
        (names (or (header-value fields "access-control-request-headers") "")))
    (when (and origins asked (header fields "origin") (find asked http-methods :test #'string=))
      (let ((cors (origin-headers origins fields)))
        (if (and cors (token-list-p names))
            (exchange:make-plain-answer
             204
             (append cors
                     `(("access-control-allow-methods" . ,(format nil "~{~A~^, ~}" http-methods))
                       ("access-control-max-age" . ,*preflight-seconds*)
                       ("vary" . ,*preflight-vary*))
                     (and (plusp (length names))
                          `(("access-control-allow-headers" . ,names))))
             (make-octets 0))
            (exchange:text-answer 403 "this origin may not call"))))))

(defun vary-headers (origins)
  "The headers for caches, an alist, if answers differ by origin with ORIGINS of START-SERVER."
  (if (consp origins) '(("vary" . "origin")) '()))

(defun exposing (cors names)
  "CORS, a value of ORIGIN-HEADERS, with the NAMES of headers that the page may read; nil if CORS is
nil."
  (and cors
       (acons "access-control-expose-headers" (format nil "~{~A~^,~}" names) cors)))
