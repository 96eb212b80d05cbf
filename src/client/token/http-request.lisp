;;;; A request of HTTP/1.1 (RFC 9112), such as to servers that issue tokens: it is sent on a new
;;;; connection, with or without TLS, and the answer is read completely. The calling thread waits; a
;;;; client loop does the I/O. The limits for the server are the total time, the length of the head
;;;; (the parser's) and the length of the body.
;;;;
;;;; States of an exchange: :connecting → :open → :done. An exchange is settled once, by
;;;; RESOLVE-FUTURE or REJECT-FUTURE of its future, and its connection is aborted at that moment.
;;;; Octets after the response are dropped.

(in-package #:clgrpc.token)

(defconstant +most-answer-octets+ 1048576
  "The maximum number of octets of the body of an answer with a token.")

(defstruct (exchange (:copier nil))
  "A request and its answer."
  (future (loop:make-future) :type loop:future :read-only t) ; the future of the status and the body
  (http-method "" :type string :read-only t) ; the method of the request, such as GET
  (request (make-octets 0) :type octets :read-only t) ; the octets of the request, head and body
  (most-octets 0 :type index :read-only t) ; the most octets of the answer's body
  (parser (http1:make-parser :client) :type http1:parser :read-only t) ; the parser of the answer
  ;; the part of the answer's body that has arrived
  (body (make-buffer :size 1024) :type buffer :read-only t)
  (connection nil :type (or null loop:connection))) ; set once the connection is made

(defmethod print-object ((exchange exchange) stream)
  (print-unreadable-object (exchange stream :type t))) ; it has secrets

(defstruct (url (:constructor make-url (text secure host port path)) (:copier nil))
  "The parts of a URL of HTTP."
  (text "" :type string :read-only t)   ; the URL without its path, since a path may be secret
  (secure nil :type boolean :read-only t) ; whether the request goes over TLS
  (host "" :type string :read-only t)   ; a name or an address without brackets
  (port 0 :type (integer 1 65535) :read-only t) ; the port of the server
  (path "/" :type string :read-only t)) ; the path and the query

(define-printer (url url)
  "~A" (url-text url))

(defun parse-url (url)
  "The parts of URL, a text http://HOST[:PORT][/PATH] or https://…. Signal MISUSE if URL has neither
form, or names a user. The error does not show URL, which may have a password or a secret path."
  (multiple-value-bind (host port path scheme user) (split-url url)
    (let ((default (rest (assoc scheme '(("http" . 80) ("https" . 443)) :test #'equal))))
      (unless (and host default (null user))
        (misuse "The URL must be http://HOST[:PORT]/PATH or https://…~:[~;, without a user~]."
                user))
      (let ((port (or port default)))
        (make-url (format nil "~A://~A" scheme (host-and-port host port)) (= 443 default)
                  host port path)))))

(defun url-authority (url)
  "The host and the port of URL, as a target."
  (host-and-port (url-host url) (url-port url)))

(defun request-octets (http-method url headers body)
  "The octets of a request for URL with HEADERS, an alist, and BODY, octets or nil."
  (let ((buffer (make-buffer :size 1024)))
    (http1:write-request-head buffer http-method (url-path url)
                              `(("host" . ,(url-authority url))
                                ("user-agent" . ,(format nil "grpc-lisp-clgrpc/~A" **version**))
                                ("connection" . "close")
                                ,@headers)
                              (and body (length body)))
    (when body (append-octets buffer body))
    (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

;;; On the loop

(defun settle (exchange &optional failure)
  "Settle EXCHANGE with its answer, or with FAILURE, a text."
  (if failure
      (loop:reject-future (exchange-future exchange)
                          (status:make-rpc-error :unavailable :ended-by :local :sent nil
                                                 :message failure))
      (let ((body (exchange-body exchange)))
        (loop:resolve-future (exchange-future exchange)
                             (http1:message-status
                              (http1:parser-message (exchange-parser exchange)))
                             (subseq-octets (buffer-octets body) (buffer-start body)
                                            (buffer-end body)))))
  (when (exchange-connection exchange)
    (loop:close-connection (exchange-connection exchange) :abort t)))

(defun take-answer (exchange octets start end)
  "Parse OCTETS for EXCHANGE. Return the position where the parser stopped."
  (let ((parser (exchange-parser exchange)) (body (exchange-body exchange)))
    (loop
      (multiple-value-bind (at event) (http1:parse parser octets start end)
        (setf start at)
        (case event
          (:body
           (append-octets body octets :start (http1:parser-body-start parser)
                                      :end (http1:parser-body-end parser))
           (when (< (exchange-most-octets exchange) (- (buffer-end body) (buffer-start body)))
             (settle exchange (format nil "the answer has more than ~D octets"
                                      (exchange-most-octets exchange)))
             (return end)))
          (:end (if (<= 100 (http1:message-status (http1:parser-message parser)) 199)
                    (http1:next-message parser)
                    (progn (settle exchange)
                           (return end))))
          (:head)
          (t (return end)))))))

(defun take-input (connection octets start end)
  "The handler's INPUT."
  (let ((exchange (loop:connection-user connection)))
    (if (loop:future-done-p (exchange-future exchange))
        end
        (handler-case (take-answer exchange octets start end)
          (http1:http1-error (error)
            (settle exchange (format nil "the answer is not HTTP/1.1: ~A"
                                     (http1:http1-error-text error)))
            end)))))

(defun connection-closed (connection reason)
  "The handler's CLOSED."
  (let ((exchange (loop:connection-user connection)))
    (unless (loop:future-done-p (exchange-future exchange))
      (cond ((and (null reason)
                  (eq :end (ignore-errors (http1:parse-end (exchange-parser exchange)))))
             (settle exchange))
            (t (settle exchange (format nil "the connection ended before the answer: ~A"
                                        (if reason
                                            (string-right-trim "." (princ-to-string reason))
                                            "the server closed it"))))))))

(sb-ext:define-load-time-global **exchange-handler**
  (loop:make-handler :input #'take-input :closed #'connection-closed :broken #'identity))

(defun begin-exchange (exchange loop byte-channel url credentials)
  "Send the request of EXCHANGE over BYTE-CHANNEL, which is connected to URL, on LOOP."
  (handler-case
      (let ((byte-channel (if (url-secure url)
                              (loop:make-tls-byte-channel loop byte-channel credentials :client
                                                          :server-name (url-host url))
                              byte-channel)))
        (http1:expect-response (exchange-parser exchange) (exchange-http-method exchange))
        (setf (exchange-connection exchange)
              (loop:make-connection loop byte-channel **exchange-handler** :user exchange))
        (append-octets (loop:connection-output (exchange-connection exchange))
                       (exchange-request exchange)))
    (clgrpc-error (error)
      (loop:close-byte-channel byte-channel)
      (settle exchange (string-right-trim "." (princ-to-string error))))))

(defun connect-exchange (exchange loop url credentials timeout)
  (loop:connect-to loop (url-authority url) (seconds-ns timeout)
                   (lambda (byte-channel condition)
                     (cond (condition
                            (settle exchange (string-right-trim "." (princ-to-string condition))))
                           ((loop:future-done-p (exchange-future exchange)) ; no thread waits
                            (loop:close-byte-channel byte-channel))
                           (t (begin-exchange exchange loop byte-channel url credentials))))))

;;; For the calling thread

(defun give-up (exchange loop)
  "End the connection of EXCHANGE on LOOP, since the thread that waited for it has given up. Return
a future, which is settled when this is done."
  (let ((done (loop:make-future)))
    (loop:post loop (lambda ()
                      (unless (loop:future-done-p (exchange-future exchange))
                        (settle exchange "given up"))
                      (loop:resolve-future done)))
    done))

(defun await-exchange (exchange loop url credentials timeout)
  "Begin EXCHANGE with the server of URL on LOOP, and return its result. See HTTP-REQUEST."
  (handler-case
      (progn
        (loop:post loop (lambda ()
                          (connect-exchange exchange loop url credentials timeout)))
        (loop:await (exchange-future exchange) :timeout timeout))
    (loop:await-timeout ()
      (status:fail :unavailable (format nil "no answer from ~A within ~A s"
                                        (url-text url) timeout)))
    (status:rpc-error (error)
      (status:fail :unavailable (format nil "~A: ~A" (url-text url)
                                        (status:rpc-error-message error))))))

(defun http-request (http-method url &key headers body credentials (timeout 5)
                                       (most-octets +most-answer-octets+))
  "Send a request for URL, a value of PARSE-URL, wait for the answer, and return its status and its
body, octets.
HTTP-METHOD  the method, such as \"GET\"
HEADERS      an alist of strings, the header fields besides Host, User-Agent and Connection
BODY         octets, or nil for a request without a body
CREDENTIALS  the TLS credentials for a URL that begins with https, made with :alpn nil; by default
             the server needs a certificate that the system trusts
TIMEOUT      the seconds until an answer must have been read
MOST-OCTETS  the maximum number of octets of the answer's body
Signal :unavailable if no answer comes in time, or it cannot be read. From any thread but a loop's."
  (let* ((credentials (and (url-secure url) (or credentials (loop:tls-credentials :alpn nil))))
         (exchange (make-exchange :http-method http-method :most-octets most-octets
                                  :request (request-octets http-method url headers body))))
    (sb-sys:without-interrupts          ; an acquired loop must be released
      (let ((loop (calling:acquire-client-loop (option:make-channel-options))))
        (unwind-protect
             (sb-sys:with-local-interrupts
               (await-exchange exchange loop url credentials timeout))
          (ignore-errors (loop:await (give-up exchange loop) :timeout 5))
          (calling:release-client-loop loop))))))
