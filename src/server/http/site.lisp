;;;; Which handler of HTTP answers a plain request: that of its path, else the fallback. A SITE has
;;;; what a server was given, with a route for each, so that the execution of each is known apart.

(in-package #:clgrpc.server)

(defstruct (http-handler (:constructor %make-http-handler (path function methods execution quiet
                                                           &optional prompt))
                         (:copier nil))
  "What answers requests for a path: see the function HTTP-HANDLER."
  (path "" :type string :read-only t)   ; all below it, too, if it ends with a slash
  (function nil :type (or function symbol) :read-only t) ; of an HTTP-REQUEST
  (methods '() :type list :read-only t) ; of HTTP, strings
  (execution nil :type (member nil :inline :blocking :auto) :read-only t) ; nil: as the server's
  (quiet nil :type boolean :read-only t) ; logs and traces leave its requests out
  (prompt nil :type (or null function) :read-only t)) ; of the query, see PROMPT-HANDLER

(declaim (sb-ext:freeze-type http-handler))

(defmethod print-object ((handler http-handler) stream)
  (print-unreadable-object (handler stream :type t)
    (format stream "~{~A~^, ~} ~A" (http-handler-methods handler) (http-handler-path handler))))

(defun http-handler (path function &key (methods '("GET" "HEAD")) execution quiet)
  "Return a handler for START-SERVER's :http, which has FUNCTION answer requests over HTTP/1.1 and
HTTP/2 for PATH, a string such as \"/metrics\". If PATH ends with a slash, as \"/console/\" does, it
is for all paths that begin with it and have no handler of their own.
FUNCTION, a function or the name of one, gets an HTTP-REQUEST: see HTTP-REQUEST-PATH,
HTTP-REQUEST-HEADER, HTTP-REQUEST-PARAMETER and HTTP-REQUEST-BODY. It returns an HTTP status from
200 to 599, an alist of headers, strings both, and a body: a string, octets or nil. Or it answers in
chunks: see BEGIN-RESPONSE. It runs as handlers of calls do. EXECUTION, :inline, :blocking or :auto,
says where, as that of START-SERVER, which it is by default. An error in it is answered with 500 and
goes to the log; FAIL in it is answered with the closest HTTP status.
METHODS is a list of HTTP methods, strings; requests with others are answered with 405. What a GET
is answered with, a HEAD is, without the body. With QUIET traces have no span of a request, and
access logs none that ends well, as of probes that come every few seconds. Signal MISUSE for a wrong
argument. From any thread."
  (unless (and (stringp path) (plusp (length path)) (char= #\/ (char path 0))
               (not (find #\? path)))
    (misuse "~S is no path: it begins with a slash and has no query." path))
  (unless (typep function '(or function (and symbol (satisfies fboundp))))
    (misuse "The handler of ~A is a function, not ~S." path function))
  (unless (and methods (listp methods) (every #'stringp methods))
    (misuse "METHODS is a list of strings such as \"GET\", not ~S." methods))
  (unless (member execution '(nil :inline :blocking :auto))
    (misuse "~S is no execution: :inline, :blocking or :auto." execution))
  (%make-http-handler path function methods execution (and quiet t)))

(defun prompt-handler (path prompt &key quiet)
  "Return a handler for START-SERVER's :http that has PROMPT answer GET and HEAD for PATH, a string:
a function of the query, a string or nil, that returns what FIXED-ANSWER does. It is called on the
loop, for a GET over HTTP/1.1 as soon as that is read, and then without a call, unless an observer
is to be told of it: PROMPT does not wait and does not fail. QUIET is as for HTTP-HANDLER. From any
thread."
  (%make-http-handler path (lambda (request) (funcall prompt (http-request-query request)))
                      '("GET" "HEAD") :inline (and quiet t) prompt))

(defstruct (site-entry (:constructor make-site-entry (handler route)) (:copier nil))
  "A handler of a server."
  (handler nil :type http-handler :read-only t) ; what it was given
  (route nil :type server-route :read-only t)) ; by which it is called

(defstruct (site (:copier nil))
  "Who answers the plain requests of a server."
  (entries (make-hash-table :test 'equal) :type hash-table :read-only t) ; by path
  (longest 0 :type index)               ; how long the longest path of ENTRIES is
  (trees '() :type list)                ; the entries whose paths end with a slash, longest first
  (fallback nil :type (or null server-route))) ; of all other requests

(declaim (sb-ext:freeze-type site-entry site))

(defmethod print-object ((site site) stream)
  (print-unreadable-object (site stream :type t)
    (format stream "~D handlers~:[~;, fallback~]" (hash-table-count (site-entries site))
            (site-fallback site))))

(defun add-entry (site entry)
  (let ((path (http-handler-path (site-entry-handler entry))))
    (when (gethash path (site-entries site))
      (misuse "There are two handlers for ~A." path))
    (setf (gethash path (site-entries site)) entry
          (site-longest site) (max (length path) (site-longest site)))
    (when (char= #\/ (char path (1- (length path))))
      (setf (site-trees site)
            (sort (cons entry (site-trees site)) #'>
                  :key (lambda (entry) (length (http-handler-path (site-entry-handler entry)))))))))

(defun find-entry (site path)
  "The entry of SITE for PATH, or nil."
  (or (gethash path (site-entries site))
      (find-if (lambda (entry)
                 (let ((tree (http-handler-path (site-entry-handler entry))))
                   (and (<= (length tree) (length path))
                        (string= tree path :end2 (length tree)))))
               (site-trees site))))
