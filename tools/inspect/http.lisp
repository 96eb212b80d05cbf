;;;; A small client of HTTP/1.1, for pages of processes such as metrics: GET, without TLS, of a
;;;; bounded answer, until a deadline. The parser and the writer are those of src/http/http1.

(in-package #:clgrpc.tools)

(defconstant +most-http-octets+ (expt 2 26) "The most octets of an answer.")

(defun parse-url (string)
  "STRING, \"http://HOST:PORT/PATH\", as its host, port and path."
  (unless (uiop:string-prefix-p "http://" string)
    (refuse "~S is not a URL that begins with http://" string))
  (multiple-value-bind (host port path scheme user) (split-url string)
    (declare (ignore scheme))
    (unless (and host (null user)) (refuse "~S has no host, or no valid port" string))
    (list host (or port 80) path)))

(defun await-socket (socket flags end-ns)
  "Wait until SOCKET has one of FLAGS of poll, at most until END-NS."
  (let ((area (os:make-poll-area 1)))
    (os:set-polled area 0 socket flags)
    (loop for left = (- end-ns (monotonic-ns))
          do (unless (plusp left) (fail-command "there is no answer in time"))
          until (plusp (os:poll-descriptors area 1 (ceiling left 1000000))))))

(defun check-result (result)
  "RESULT, of a function of src/os. Signal a FAILURE if it is a negated errno."
  (when (os:failed-p result) (fail-command "~A" (os:errno-text result)))
  result)

(defun connect-to (host port end-ns)
  "A socket that is connected to HOST and PORT; the caller closes it."
  (multiple-value-bind (addresses why) (os:resolve-host host port)
    (unless addresses (fail-command "~A cannot be found: ~A" host why))
    (let ((socket (check-result (os:open-socket (os:address-family (first addresses)))))
          (connected nil))
      (unwind-protect
           (let ((result (os:connect-socket socket (first addresses))))
             (unless (= result (- os:+einprogress+)) (check-result result))
             (await-socket socket os:+event-out+ end-ns)
             (check-result (- (os:socket-option socket os:+sol-socket+ os:+so-error+)))
             (setf connected t)
             socket)
        (unless connected (os:close-descriptor socket))))))

(defun send-request (socket octets end-ns)
  (loop with at = 0
        while (< at (length octets))
        do (let ((sent (os:send-octets socket octets at (length octets))))
             (if (= sent (- os:+eagain+))
                 (await-socket socket os:+event-out+ end-ns)
                 (incf at (check-result sent))))))

(defun receive-some (socket octets end-ns)
  "The number of octets read into OCTETS; 0 at the end."
  ;; a server that sends without end never has the socket waited for
  (unless (< (monotonic-ns) end-ns) (fail-command "there is no answer in time"))
  (loop for count = (os:receive-octets socket octets 0 (length octets))
        unless (= count (- os:+eagain+)) return (check-result count)
        do (await-socket socket os:+event-in+ end-ns)))

(defun receive-answer (socket end-ns)
  "The status and the body, octets, of the response that comes from SOCKET."
  (let ((parser (http1:make-parser :client))
        (octets (make-octets 65536))
        (body (make-buffer)))
    (http1:expect-response parser "GET")
    (flet ((status () (http1:message-status (http1:parser-message parser)))
           (take (start end)
             (when (< +most-http-octets+ (+ (buffer-fill body) (- end start)))
               (fail-command "the answer has more than ~D octets" +most-http-octets+))
             (append-octets body octets :start start :end end)))
      (loop
        (let ((count (receive-some socket octets end-ns)) (at 0))
          (when (and (zerop count) (not (eq :end (http1:parse-end parser))))
            (fail-command "the connection has ended without an answer"))
          (loop
            (multiple-value-bind (next event)
                (if (zerop count) (values 0 :end) (http1:parse parser octets at count))
              (setf at next)
              (case event
                (:body (take (http1:parser-body-start parser) (http1:parser-body-end parser)))
                (:end (unless (< (status) 200)
                        (return-from receive-answer
                          (values (status) (subseq-octets (buffer-octets body) (buffer-start body)
                                                          (buffer-end body)))))
                 (http1:next-message parser))
                ((nil) (return))))))))))

(defun get-over-http (url &key accept (timeout 5))
  "The answer to GET of URL, a value of PARSE-URL, within TIMEOUT seconds: a status and octets.
ACCEPT is the value of the header of that name, or nil. Signal a FAILURE if there is no answer."
  (destructuring-bind (host port path) url
    (let* ((end-ns (+ (monotonic-ns) (seconds-ns timeout)))
           (socket (connect-to host port end-ns))
           (head (make-buffer)))
      (unwind-protect
           (handler-case
               (progn
                 (http1:write-request-head
                  head "GET" path
                  `(("host" . ,(format nil "~:[~A~;[~A]~]:~D" (find #\: host) host port))
                    ("connection" . "close")
                    ,@(when accept `(("accept" . ,accept))))
                  nil)
                 (send-request socket
                           (subseq-octets (buffer-octets head) (buffer-start head)
                                          (buffer-end head))
                           end-ns)
                 (receive-answer socket end-ns))
             (http1:http1-error (error)
               (fail-command "the server does not speak HTTP/1.1: ~A"
                             (http1:http1-error-text error))))
        (os:close-descriptor socket)))))
