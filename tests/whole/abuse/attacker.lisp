;;;; Raw peers: a client that throws whatever octets a test likes at a server and hears what comes
;;;; back as frames in the notation of the dialogues, and a server that answers every request with a
;;;; script. No wait is without a limit: sockets are non-blocking, and a peer that is not read gives
;;;; up.

(in-package #:clgrpc.tests.abuse)

(defstruct (attacker (:copier nil))
  "SPEECH is the HPACK state of the frames sent and heard; NEXT-ID the stream to open next."
  socket
  (speech (dialogue:make-peer))
  (input (make-buffer :size 65536))
  (area (make-octets 65536))
  (next-id 1)
  (closed nil))

(defun usable-p (attacker direction seconds)
  (sb-sys:wait-until-fd-usable
   (sb-bsd-sockets:socket-file-descriptor (attacker-socket attacker)) direction seconds nil))

;;; Sending

(defparameter *preface*
  (let ((line-end (coerce '(#\Return #\Newline) 'string)))
    (ascii-octets (concatenate 'string "PRI * HTTP/2.0" line-end line-end "SM" line-end line-end))))

(defun throw-some (attacker octets at seconds)
  "Send OCTETS from AT on until the server takes none for SECONDS; return how far that came, or nil
if the connection is gone."
  (loop while (< at (length octets))
        do (let ((count (handler-case
                            (sb-bsd-sockets:socket-send (attacker-socket attacker)
                                                        (subseq octets at) nil :nosignal t)
                          (sb-bsd-sockets:interrupted-error () 0)
                          (sb-bsd-sockets:socket-error () (return nil)))))
             (cond (count (incf at count))
                   ((not (usable-p attacker :output seconds)) (return at))))
        finally (return at)))

(defun throw-octets (attacker octets &key (seconds +patience+))
  "Send OCTETS; false if the connection is gone or the server takes none for SECONDS."
  (eql (length octets) (throw-some attacker octets 0 seconds)))

(defun throw-frames (attacker &rest forms)
  "Send the frames FORMS in one piece; false as THROW-OCTETS."
  (throw-octets attacker (frames-octets (attacker-speech attacker) forms)))

;;; Hearing

(defun read-input (attacker seconds)
  "Read once; false if nothing came in SECONDS or the connection is at its end."
  (let ((area (attacker-area attacker)))
    (when (usable-p attacker :input seconds)
      (let ((count (handler-case
                       (nth-value 1 (sb-bsd-sockets:socket-receive (attacker-socket attacker)
                                                                   area nil))
                     (sb-bsd-sockets:socket-error () 0))))
        (cond ((null count) t)          ; nothing after all
              ((zerop count) (setf (attacker-closed attacker) t) nil)
              (t (append-octets (attacker-input attacker) area :end count) t))))))

(defun take-frame (attacker)
  "The next whole frame as (type flags id payload), or nil."
  (let* ((input (attacker-input attacker))
         (octets (buffer-octets input))
         (at (buffer-start input)))
    (when (<= 9 (buffer-fill input))
      (let ((length (u24be octets at)))
        (when (<= (+ 9 length) (buffer-fill input))
          (incf (buffer-start input) (+ 9 length))
          (list (aref octets (+ at 3)) (aref octets (+ at 4)) (u32be octets (+ at 5))
                (subseq-octets octets (+ at 9) (+ at 9 length))))))))

(defun hear (attacker until &key (seconds +patience+))
  "Hear frames until UNTIL is true of one, the connection has been closed, or SECONDS have passed.
Return the list of all that were heard."
  (let ((end (+ (monotonic-ns) (seconds-ns seconds)))
        (heard '()))
    (loop
      (let ((frame (take-frame attacker)))
        (cond (frame
               (push (dialogue:frame-form (attacker-speech attacker) frame
                                          (lambda () (take-frame attacker)))
                     heard)
               (when (funcall until (first heard)) (return)))
              ((or (attacker-closed attacker) (<= end (monotonic-ns))) (return))
              (t (read-input attacker (max 0 (ns-seconds (- end (monotonic-ns)))))))))
    (nreverse heard)))

(defun hear-to-the-end (attacker)
  "Hear until the server closes the connection; return the code of its GOAWAY, :closed without one,
or :open if it does not close in time."
  (let* ((heard (hear attacker #'null))
         (goaway (find :goaway heard :key #'first :from-end t)))
    (cond ((not (attacker-closed attacker)) :open)
          (goaway (third goaway))
          (t :closed))))

(defun field-of (name form)
  (second (assoc name (third form) :test #'string=)))

(defun ending-of (form)
  "How FORM, the last frame of a stream, ends it: a status, an HTTP status, (:reset CODE) or :data."
  (case (first form)
    (:rst-stream (list :reset (third form)))
    (:data :data)
    (:headers (let ((status (field-of "grpc-status" form)))
                (if status
                    (status:code-status (parse-integer status))
                    (parse-integer (or (field-of ":status" form) "0")))))))

(defun verdict (attacker id)
  "Wait until stream ID has ended; return how: as ENDING-OF says, an HTTP status if the answer was
no gRPC, (:goaway CODE) if the connection ended instead, or :nothing."
  (let* ((heard (hear attacker
                      (lambda (form)
                        (or (eq :goaway (first form))
                            (and (member (first form) '(:headers :data :rst-stream))
                                 (= id (second form))
                                 (or (eq :rst-stream (first form)) (member :end-stream form)))))))
         (last (first (last heard)))
         (first (find-if (lambda (form) (and (eq :headers (first form)) (= id (second form))))
                         heard)))
    (cond ((null last) :nothing)
          ((eq :goaway (first last)) (list :goaway (third last)))
          ((eq :data (ending-of last)) (if first (ending-of first) :nothing))
          (t (ending-of last)))))

;;; A client

(defun connect (address &key from)
  "A connection to ADDRESS, from the address FROM if that is given, octets of 127.0.0.0/8."
  (let ((socket (make-socket)))
    (when from (sb-bsd-sockets:socket-bind socket from 0))
    ;; what is not heard soon blocks the server
    (setf (sb-bsd-sockets:sockopt-receive-buffer socket) 8192)
    (sb-bsd-sockets:socket-connect socket #(127 0 0 1)
                                   (parse-integer address :start (1+ (position #\: address))))
    (setf (sb-bsd-sockets:non-blocking-mode socket) t
          (sb-bsd-sockets:sockopt-tcp-nodelay socket) t)
    (make-attacker :socket socket)))

(defun greet (attacker &rest settings)
  "Begin HTTP/2 as a decent client does, with SETTINGS as (NAME VALUE), and a large window."
  (throw-octets attacker *preface*)
  (throw-frames attacker (list* :settings settings) '(:settings-ack)
                '(:window-update 0 1000000000))
  attacker)

(defun call-with-attacker (function address polite settings from)
  (let ((attacker (connect address :from from)))
    (unwind-protect (progn (when polite (apply #'greet attacker settings))
                           (funcall function attacker))
      (close-socket (attacker-socket attacker)))))

(defmacro with-attacker ((attacker address &key (polite t) settings from) &body body)
  "Evaluate BODY with ATTACKER connected to ADDRESS, after an ordinary beginning if POLITE."
  `(call-with-attacker (lambda (,attacker) ,@body) ,address ,polite ,settings ,from))

(defun new-id (attacker)
  (prog1 (attacker-next-id attacker) (incf (attacker-next-id attacker) 2)))

(defun request-fields (path &key (method "POST") (content-type "application/grpc") fields)
  `((":method" ,method) (":scheme" "http") (":path" ,path) (":authority" "x") ("te" "trailers")
    ,@(when content-type `(("content-type" ,content-type)))
    ,@fields))

(defun demand (attacker path octets &rest keys &key (end t) &allow-other-keys)
  "Open a stream with a request to PATH whose content is OCTETS, in one piece; END says whether to
end it. The other KEYS are those of REQUEST-FIELDS. Return the stream's identifier."
  (let ((id (new-id attacker)))
    (throw-frames attacker
                  (list :headers id (apply #'request-fields path
                                           (alexandria:remove-from-plist keys :end)))
                  (list* :data id octets (when end '(:end-stream))))
    id))

(defun served-p (attacker)
  "True if an ordinary call on ATTACKER's connection is answered."
  (eq :ok (verdict attacker (demand attacker "/lab.Bench/Ask" (note-octets 1)))))

;;; A server

(defun close-by-reset (socket)
  "Close SOCKET so that its peer gets a RST: SO_LINGER with no time."
  (let ((linger (octets-of 1 0 0 0 0 0 0 0)))
    (sb-sys:with-pinned-objects (linger)
      (sb-alien:alien-funcall
       (sb-alien:extern-alien "setsockopt" (function sb-alien:int sb-alien:int sb-alien:int
                                                     sb-alien:int sb-sys:system-area-pointer
                                                     sb-alien:int))
       (sb-bsd-sockets:socket-file-descriptor socket) os:+sol-socket+ os:+so-linger+
       (sb-sys:vector-sap linger) 8))
    (close-socket socket)))

(defun serve-script (attacker opening answer)
  "Send OPENING, octets, then for each request what ANSWER, nil or a function of the stream's
identifier that returns frames or octets, says; :close among the frames closes the connection,
:reset has the kernel reset it."
  (throw-octets attacker opening)
  (let ((beginning t))
    (loop
      (when (and beginning (<= 24 (buffer-fill (attacker-input attacker))))
        (incf (buffer-start (attacker-input attacker)) 24)
        (setf beginning nil))
      (let ((frame (and (not beginning) (take-frame attacker))))
        (cond ((and frame (= 1 (first frame)) answer)
               (let ((speech (funcall answer (third frame))))
                 (if (typep speech 'octets)
                     (throw-octets attacker speech)
                     (apply #'throw-frames attacker (remove-if #'keywordp speech)))
                 (when (find :reset speech) (close-by-reset (attacker-socket attacker)))
                 (when (find-if #'keywordp speech) (return))))
              (frame)
              ((attacker-closed attacker) (return))
              ((not (read-input attacker +patience+)) (return)))))))

(defun serve-connection (socket opening answer)
  "Serve the connection SOCKET as OPENING and ANSWER say."
  (setf (sb-bsd-sockets:non-blocking-mode socket) t)
  (let ((attacker (make-attacker :socket socket)))
    (when (and (read-input attacker +patience+) (not (eq opening :close)))
      (serve-script attacker opening answer))))

(defun call-with-evil-server (function opening answer)
  (call-with-served-sockets function
                            (lambda (socket) (serve-connection socket opening answer))
                            :together t))

(defun opening-octets (&rest forms)
  (frames-octets (dialogue:make-peer) forms))

(defmacro with-evil-server ((address &key (opening '(opening-octets '(:settings) '(:settings-ack))))
                            answer
                            &body body)
  "Evaluate BODY with ADDRESS bound to that of a server that begins with OPENING, octets or :close,
and answers requests with what ANSWER, see SERVE-SCRIPT, returns."
  `(call-with-evil-server (lambda (,address) ,@body) ,opening ,answer))
