;;;; Sockets as Gray streams: READ-BYTE, READ-SEQUENCE, READ-LINE, WRITE-BYTE, WRITE-SEQUENCE,
;;;; FORMAT and CLOSE on a socket of the loop. Nothing here waits: a read of more octets than have
;;;; arrived reports the end of file, for now, and output is written by WRITE-SOCKET-DATA.
;;;;
;;;; Octets that have arrived and are not read are kept. Once more than HIGH-WATER are kept, the
;;;; socket is not read until only LOW-WATER are left. A stream without unread octets has no buffer.
;;;; Input is read on the loop; output may be written by any thread.

(in-package #:clgrpc.async)

(defclass async-io-stream (sb-gray:fundamental-binary-input-stream
                           sb-gray:fundamental-character-input-stream
                           sb-gray:fundamental-binary-output-stream
                           sb-gray:fundamental-character-output-stream)
  ((socket :initarg :socket :reader stream-socket)   ; the SOCKET that the stream reads and writes
   (unread :initform nil :accessor stream-unread)    ; nil or a buffer that is not empty
   (searched :initform 0 :accessor stream-searched)  ; octets of UNREAD without a newline
   (stopped :initform nil :accessor stream-stopped)) ; the socket is not read for now
  (:documentation "A stream that reads and writes a socket. TCP-SERVER, TCP-CONNECT, PIPE-SERVER and
PIPE-CONNECT make it if their argument :STREAM is true. READ-BYTE, READ-SEQUENCE (octets) and
READ-LINE (UTF-8) read it, on its loop and without waiting: when all octets that have arrived are
read, they report the end of file, until more octets arrive. READ-LINE returns whole lines. If a
line is longer than :HIGH-WATER of the socket, or the peer has closed the connection within a line,
READ-LINE returns the part that has arrived, and true as the second value. A line that is not UTF-8
is skipped, and INVALID-UTF8 is signalled. LISTEN returns true if there are octets to read.
WRITE-BYTE, WRITE-SEQUENCE, WRITE-STRING, FORMAT and the like (UTF-8) write it as WRITE-SOCKET-DATA
does, from any thread. CLOSE calls CLOSE-SOCKET; :ABORT is its :FORCE."))

(document-functions
  stream-socket "The socket of the ASYNC-IO-STREAM given.")

(define-printer (stream async-io-stream)
  "~A, ~D octet~:P unread" (stream-socket stream) (unread-octets stream))

(defun socket-stream (socket)
  "Return the ASYNC-IO-STREAM of SOCKET, which was made with :STREAM true; its read callback gets
the same stream. Signal MISUSE if SOCKET was made without :STREAM. On its loop."
  (unless (settings-stream (%socket-settings socket))
    (misuse "~A was not made with :STREAM true." socket))
  (or (%socket-stream socket)
      (setf (%socket-stream socket) (make-instance 'async-io-stream :socket socket))))

;;; Input

(defun stream-feeder (read-cb)
  "The in-place read callback of sockets used as streams: keep the received octets and call
READ-CB."
  (declare (type callback read-cb))
  (lambda (socket octets start end)
    (let* ((stream (socket-stream socket))
           (unread (or (stream-unread stream)
                       (setf (stream-unread stream) (make-buffer :size (- end start))))))
      (append-octets unread octets :start start :end end)
      (mind-water stream)
      (when read-cb (funcall (callback-function read-cb) socket stream)))))

(defun unread-octets (stream)
  (let ((unread (stream-unread stream)))
    (if unread (buffer-fill unread) 0)))

(defun mind-water (stream)
  "Stop reading the socket of STREAM if too much is unread; read it again once enough was read."
  (let* ((socket (stream-socket stream))
         (settings (%socket-settings socket))
         (count (unread-octets stream)))
    (cond ((stream-stopped stream)
           (when (<= count (settings-low-water settings))
             (setf (stream-stopped stream) nil)
             (enable-socket socket :read t)))
          ((> count (settings-high-water settings))
           (setf (stream-stopped stream) t)
           (disable-socket socket :read t)))
    nil))

(defun take-unread (stream count)
  "Remove the first COUNT of STREAM's unread octets; read the socket again once few are left."
  (let ((unread (stream-unread stream)))
    (when (and unread (= (buffer-end unread) (incf (buffer-start unread) count)))
      (setf (stream-unread stream) nil))
    (setf (stream-searched stream) (max 0 (- (stream-searched stream) count)))
    (mind-water stream)))

(defmethod sb-gray:stream-listen ((stream async-io-stream))
  (plusp (unread-octets stream)))

(defmethod sb-gray:stream-clear-input ((stream async-io-stream))
  (take-unread stream (unread-octets stream))
  nil)

(defmethod sb-gray:stream-read-byte ((stream async-io-stream))
  (let ((unread (stream-unread stream)))
    (if unread
        (prog1 (aref (buffer-octets unread) (buffer-start unread))
          (take-unread stream 1))
        :eof)))

(defmethod sb-gray:stream-read-sequence ((stream async-io-stream) sequence &optional (start 0) end)
  (let* ((unread (stream-unread stream))
         (count (min (unread-octets stream) (- (or end (length sequence)) start))))
    (when (plusp count)
      (replace sequence (buffer-octets unread) :start1 start :end1 (+ start count)
                                               :start2 (buffer-start unread))
      (take-unread stream count))
    (+ start count)))

(defun last-character (octets start end)
  "The index in OCTETS, UTF-8 from START to END, at which the last character begins if that may be
incomplete; END if it is ASCII."
  (let ((lead (position-if (lambda (octet) (/= #b10 (ldb (byte 2 6) octet))) octets
                           :start start :end end :from-end t)))
    (if (and lead (< start lead) (logbitp 7 (aref octets lead))) lead end)))

(defmethod sb-gray:stream-read-line ((stream async-io-stream))
  (let* ((unread (stream-unread stream))
         (octets (if unread (buffer-octets unread) (make-octets 0)))
         (start (if unread (buffer-start unread) 0))
         (end (if unread (buffer-end unread) 0))
         ;; octets may arrive one by one, with a request for a line after each
         (newline (position 10 octets :start (+ start (stream-searched stream)) :end end)))
    (declare (type octets octets))
    (unless newline (setf (stream-searched stream) (- end start)))
    (flet ((text (end count)
             (let ((line (subseq-octets octets start end)))
               (take-unread stream count) ; even if the line is not UTF-8
               (octets-string line))))
      (cond (newline (values (text newline (- (1+ newline) start)) nil))
            ((socket-closed-p (stream-socket stream)) (values (text end (- end start)) t))
            ((stream-stopped stream)
             (let ((end (last-character octets start end)))
               (values (text end (- end start)) t)))
            (t (values "" t))))))       ; the end of file, to READ-LINE

;;; Output

(defmethod sb-gray:stream-write-byte ((stream async-io-stream) octet)
  (write-socket-data (stream-socket stream) (octets-of octet))
  octet)

(defmethod sb-gray:stream-write-sequence ((stream async-io-stream) sequence
                                          &optional (start 0) end)
  (write-socket-data (stream-socket stream) sequence :start start :end end)
  sequence)

(defmethod sb-gray:stream-write-string ((stream async-io-stream) string &optional (start 0) end)
  (write-socket-data (stream-socket stream) string :start start :end end)
  string)

(defmethod sb-gray:stream-write-char ((stream async-io-stream) char)
  (write-socket-data (stream-socket stream) (string char))
  char)

(defmethod sb-gray:stream-line-column ((stream async-io-stream))
  nil)

;;; Life

(defmethod stream-element-type ((stream async-io-stream))
  'octet)

(defmethod open-stream-p ((stream async-io-stream))
  (not (socket-closed-p (stream-socket stream))))

(defmethod close ((stream async-io-stream) &key abort)
  (close-socket (stream-socket stream) :force abort)
  t)
