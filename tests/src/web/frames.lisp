;;;; Requests over HTTP/2, frame by frame, and a server's answers.

(in-package #:clgrpc.tests.web)

(defun whole-frames-end (octets)
  "The end of the last frame that is complete in OCTETS."
  (loop with at = 0
        for end = (and (<= (+ at 9) (length octets)) (+ at 9 (u24be octets at)))
        while (and end (<= end (length octets)))
        do (setf at end)
        finally (return at)))

(defun hear-frames (socket peer over-p)
  "The frames from SOCKET, a list of forms, until OVER-P is true of it or no more arrive. PEER has
the state of HPACK."
  (let ((rest (make-octets 0)) (forms '()))
    (loop for heard = (hear-octets socket 1)
          until (zerop (length heard))
          do (let* ((octets (concatenate 'octets rest heard)) (end (whole-frames-end octets)))
               (setf forms (append forms
                                   (dialogue:read-frame-forms peer (subseq octets 0 end)))
                     rest (subseq octets end)))
          until (funcall over-p forms))
    forms))

(defun frame-of (forms kind id &optional (test (constantly t)))
  "The first of FORMS of KIND on stream ID for which TEST is true, or nil."
  (find-if (lambda (form) (and (eq kind (first form)) (eql id (second form)) (funcall test form)))
           forms))

(defun reset-of (forms id)
  "The code with which stream ID was reset in FORMS, or nil."
  (third (frame-of forms :rst-stream id)))

(defun goaway-of (forms)
  "The code with which the connection was ended in FORMS, or nil."
  (third (find :goaway forms :key #'first)))

(defun answer-fields (forms id)
  "The fields of the answer on stream ID of FORMS, an alist."
  (loop for (name value) in (third (frame-of forms :headers id)) collect (cons name value)))

(defun answer-status (forms id)
  "The status of the answer on stream ID of FORMS, a number, or nil."
  (let ((status (cdr (assoc ":status" (answer-fields forms id) :test #'string=))))
    (and status (parse-integer status))))

(defun stream-over-p (forms id)
  (or (reset-of forms id)
      (goaway-of forms)
      (frame-of forms :data id (lambda (form) (member :end-stream form)))
      (frame-of forms :headers id (lambda (form) (member :end-stream form)))))

(defun say-frames (socket peer forms)
  "Send FORMS to SOCKET; a peer that has ended the connection does not get them all."
  (handler-case (say-text socket (map 'string #'code-char (dialogue:frames-octets peer forms)))
    (sb-bsd-sockets:socket-error () nil)))

(defmacro with-http2-socket ((socket peer server) &body body)
  "Evaluate BODY with SOCKET connected to SERVER and PEER; HTTP/2 has begun on the connection."
  `(with-plain-socket (,socket (grpc:server-address ,server))
     (let ((,peer (dialogue:make-peer)))
       (say-text ,socket (map 'string #'code-char dialogue:*preface*))
       (say-frames ,socket ,peer '((:settings) (:settings-ack)))
       ,@body)))

(defun frames-answered (server forms &key (streams '(1)))
  "The answers of SERVER to FORMS, a list of forms, until STREAMS are over."
  (with-http2-socket (socket peer server)
    (say-frames socket peer forms)
    (hear-frames socket peer (lambda (forms)
                               (every (lambda (id) (stream-over-p forms id)) streams)))))

(defun head-fields (row &rest more)
  "The fields of a request of ROW, of *GOOD-REQUESTS*, and MORE, lists of name and value."
  (destructuring-bind (line type) (subseq row 1 3)
    (let ((space (position #\Space line)))
      `((":method" ,(subseq line 0 space)) (":scheme" "http")
        (":path" ,(subseq line (1+ space))) (":authority" "a")
        ("content-type" ,type) ,@more))))
