;;;; The choice of the HTTP handler for a request: the handler of the request's path, else the
;;;; fallback. A ROUTER has a server's handlers, each with a route: the object by which the server
;;;; calls it.

(in-package #:clgrpc.exchange)

(defstruct (http-handler (:constructor %make-http-handler (path function methods execution quiet
                                                           &optional prompt))
                         (:copier nil))
  "A handler of requests for a path: see the function HTTP-HANDLER."
  (path "" :type string :read-only t)   ; the path; if it ends with a slash, all paths below it, too
  (function nil :type (or function symbol) :read-only t) ; a function of an HTTP-REQUEST
  (methods '() :type list :read-only t) ; the methods of HTTP that the handler answers, strings
  ;; where the handler runs; nil: as the server's handlers
  (execution nil :type (member nil :inline :blocking :auto) :read-only t)
  (quiet nil :type boolean :read-only t) ; logs and traces omit its requests
  (prompt nil :type (or null function) :read-only t)) ; a function of the query, see PROMPT-HANDLER

(declaim (sb-ext:freeze-type http-handler))

(define-printer (handler http-handler)
  "~{~A~^, ~} ~A" (http-handler-methods handler) (http-handler-path handler))

(define-keyword-function http-handler (path function &key (methods '("GET" "HEAD")) execution quiet)
  "Return a handler for START-SERVER's :http, which answers requests over HTTP/1.1 and HTTP/2.
Signal MISUSE for a wrong argument. From any thread.

PATH       the path of the requests, a string such as \"/metrics\". If it ends with a slash, as
           \"/console/\" does, the handler is for all paths that begin with it and have no handler
           of their own
FUNCTION   a function of an HTTP-REQUEST, or the name of such a function: see HTTP-REQUEST-PATH,
           HTTP-REQUEST-HEADER, HTTP-REQUEST-PARAMETER and HTTP-REQUEST-BODY. The function returns
           an HTTP status from 200 to 599, an alist of headers, strings both, and a body: a string,
           octets or nil. Or the function answers in chunks: see BEGIN-RESPONSE. The function runs
           as handlers of calls do. An error in FUNCTION is answered with 500 and logged; a
           FAIL in FUNCTION is answered with the closest HTTP status
METHODS    a list of HTTP methods, strings, by default GET and HEAD; requests with other methods are
           answered with 405. HEAD gets the answer of GET without the body
EXECUTION  :inline, :blocking or :auto, the choice of the thread of FUNCTION as for START-SERVER;
           by default the server's
QUIET      true: traces have no spans of the requests, and access logs only those that fail. Use
  this for probes that arrive every few seconds"
  (unless (and (stringp path) (plusp (length path)) (char= #\/ (char path 0))
               (not (find #\? path)))
    (misuse "~S is not a path: it begins with a slash and has no query." path))
  (unless (typep function '(or function (and symbol (satisfies fboundp))))
    (misuse "The handler of ~A is a function, not ~S." path function))
  (check-arity function '(request) (format nil "The handler of ~A" path))
  (unless (and methods (listp methods) (every #'stringp methods))
    (misuse "METHODS is a list of strings such as \"GET\", not ~S." methods))
  (unless (member execution '(nil :inline :blocking :auto))
    (misuse "~S is not an execution: :inline, :blocking or :auto." execution))
  (%make-http-handler path function methods execution (and quiet t)))

(defstruct (router-entry (:constructor make-router-entry (handler route)) (:copier nil))
  "A handler of a server."
  (handler nil :type http-handler :read-only t) ; the handler
  (route nil :read-only t))             ; the owner's route to the handler

(defstruct (router (:copier nil))
  "The handlers of the plain requests of a server."
  (entries (make-hash-table :test 'equal) :type hash-table :read-only t) ; entries by path
  (longest 0 :type index)               ; the length of the longest path of ENTRIES
  (trees '() :type list)                ; the entries whose paths end with a slash, longest first
  (fallback nil)                        ; the route of all other requests, or nil
  ;; (http-method target fields): called first; FIELDS is a vector of HPACK's fields of the head.
  ;; CLAIM returns the owner's route if the owner claims the request, or an answer, or nil
  (claim nil :type (or null function))
  (epoch 0 :type fixnum))               ; incremented when results of CLAIM may change

(declaim (sb-ext:freeze-type router-entry router))

(define-printer (router router)
  "~D handlers~:[~;, fallback~]" (hash-table-count (router-entries router))
  (router-fallback router))

(defun add-handler (router handler route)
  "Add HANDLER, with the owner's ROUTE for it, to ROUTER. Signal MISUSE if ROUTER has a handler for
its path."
  (let ((path (http-handler-path handler)) (entry (make-router-entry handler route)))
    (when (gethash path (router-entries router))
      (misuse "There are two handlers for ~A." path))
    (setf (gethash path (router-entries router)) entry
          (router-longest router) (max (length path) (router-longest router)))
    (when (char= #\/ (char path (1- (length path))))
      (setf (router-trees router)
            (sort (cons entry (router-trees router)) #'>
                  :key (lambda (entry)
                         (length (http-handler-path (router-entry-handler entry)))))))))

(defun find-entry (router path)
  "Return the entry of ROUTER for PATH, or nil if it has none."
  (or (gethash path (router-entries router))
      (find-if (lambda (entry)
                 (let ((tree (http-handler-path (router-entry-handler entry))))
                   (and (<= (length tree) (length path))
                        (string= tree path :end2 (length tree)))))
               (router-trees router))))

(defun wrong-method (handler)
  "Return the answer to a request whose method HANDLER does not accept."
  (make-plain-answer 405 `(("allow" . ,(format nil "~{~A~^, ~}" (http-handler-methods handler)))
                           ("content-type" . "text/plain"))
                     (ascii-octets "not with this method")))

(defun target-entry (router target)
  "Return the entry of ROUTER for TARGET, or nil if it has none. TARGET is read only as far as
necessary."
  (when router
    (let* ((enough (min (length target) (1+ (router-longest router))))
           (query (position #\? target :end enough)))
      (find-entry router (subseq target 0 (or query enough))))))

(defun answers-p (router target)
  "Return true if ROUTER, which may be nil, has a handler for TARGET, or a handler for all targets."
  (and router (or (router-fallback router) (target-entry router target)) t))

(defun find-route (router http-method target)
  "Return the route of ROUTER, which may be nil, for a request with HTTP-METHOD for TARGET, or nil
if there is none."
  (let ((entry (target-entry router target)))
    (cond ((null router) nil)
          ((null entry) (router-fallback router))
          ((member http-method (http-handler-methods (router-entry-handler entry))
                   :test #'string=)
           (router-entry-route entry)))))
