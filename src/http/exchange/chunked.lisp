;;;; Answers in chunks: a handler of HTTP begins a response, and any thread continues it over time,
;;;; as server-sent events require. Everything is posted to the loop of the request's call. The
;;;; octets that wait for the peer are bounded: SEND-CHUNK refuses more.

(in-package #:clgrpc.exchange)

(defconstant +head-charge+ 1
  "The number of octets with which a call is charged for the head of a response that is on its way
to the loop.")

(defun post (request size function)
  "Call FUNCTION on the loop of REQUEST, after the functions posted before. From any thread."
  (funcall (sink-post (http-request-sink request)) request size function))

(defun begin-response (request &key (status 200) headers)
  "Begin to answer REQUEST, the argument of a handler of HTTP, in chunks: send STATUS, an HTTP
status from 200 to 599, and HEADERS, an alist of strings. Return REQUEST. SEND-CHUNK continues the
response, and END-RESPONSE ends it. If the handler returns REQUEST, the response remains open; any
other value of the handler ends the response. A server that stops ends open responses at once; a
response that begins afterwards ends when its handler returns. A response without a body, such as
the response to a HEAD, ends with its head. Signal MISUSE if REQUEST already has an answer. From any
thread."
  (let ((answer (check-answer status headers nil)))
    (when (sb-ext:compare-and-swap (http-request-sending request) nil :posted)
      (misuse "The response to ~A was begun before." request))
    (post request +head-charge+
          (lambda ()
            (unless (over-p request)
              (setf (http-request-answer request) answer
                    (http-request-sending request) :begun)
              (funcall (sink-head-sent (http-request-sink request)) request)
              (funcall (responder-begin (http-request-responder request)) request answer)
              (when (ended-by-head-p request) (finish request)))))
    request))

(defun check-begun (request)
  "Signal MISUSE if the response to REQUEST has not been begun."
  (unless (http-request-sending request)
    (misuse "The response to ~A has not been begun: see BEGIN-RESPONSE." request)))

(defun waiting-octets (request)
  "The number of unsent octets of REQUEST's response, which is open. From any thread."
  (+ (the index (funcall (sink-posted (http-request-sink request)) request))
     (the index (funcall (responder-unsent (http-request-responder request)) request))))

(defun room-for-chunk-p (request count)
  "True if COUNT further octets of REQUEST's response may wait. If no octets wait, a chunk of any
length may wait."
  (let ((waiting (waiting-octets request)))
    (or (<= waiting +head-charge+)
        (<= (+ waiting count)
            (options-send-budget-octets (http-request-options request))))))

(defun post-chunk (request octets)
  "Send OCTETS in REQUEST's response, on the loop. OCTETS belong to the connection afterwards."
  (post request (length octets)
        (lambda ()
          (unless (over-p request)
            (funcall (responder-chunk (http-request-responder request)) request octets)))))

(defun send-chunk (request chunk)
  "Send CHUNK, a string, which becomes UTF-8, or octets, as the next part of the response to REQUEST
that BEGIN-RESPONSE has begun; CHUNK may be changed afterwards. Return true. Return nil, and send
nothing, if the response has ended, or if the octets that wait for a slow peer would exceed the
option send-budget-octets. Signal MISUSE if the response has not been begun. From any thread."
  (check-begun request)
  (let* ((octets (if (stringp chunk) (string-octets chunk) (coerce chunk 'octets)))
         (count (length octets)))
    (cond ((over-p request) nil)
          ((zerop count) t)
          ((not (room-for-chunk-p request count)) nil)
          (t (post-chunk request
                         ;; the caller may reuse its own vector afterwards
                         (if (eq octets chunk) (copy-seq octets) octets))
             t))))

(defun end-response (request)
  "End the response to REQUEST that BEGIN-RESPONSE has begun, after all chunks sent so far. Ending
the response again, or after the peer has disconnected, does nothing. Signal MISUSE if the response
has not been begun. From any thread."
  (check-begun request)
  (post request 0 (lambda () (finish request)))
  nil)

(defun response-open-p (request)
  "True until the response to REQUEST has ended, or its peer has disconnected. From any thread."
  (not (over-p request)))

(defun on-response-end (request function)
  "Call FUNCTION without arguments when the response to REQUEST ends: when END-RESPONSE has been
called, the peer has disconnected, or the server stops. FUNCTION runs on the loop of REQUEST's
connection, so it must not wait. Return REQUEST. From any thread."
  (funcall (sink-on-end (http-request-sink request)) request function)
  request)

(defun end-open-response (request)
  "If the answer to REQUEST is sent in chunks, end it, because the server stops. On the loop."
  (when (begun-p request)
    (funcall (sink-stop (http-request-sink request)) request)))

(defun end-if-stopping (request)
  "End the response that the handler of REQUEST has left open if the server stops, since STOP-SERVER
has ended only those that were open before. From any thread."
  (when (funcall (sink-stopping-p (http-request-sink request)) request)
    (post request 0 (lambda () (unless (over-p request) (end-open-response request))))))
