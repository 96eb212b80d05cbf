;;;; The words of a dialogue, from the view of the connection under test:
;;;;
;;;;   (hears FRAME…)   the peer's frames come in, all in one piece
;;;;   (says FRAME…)    exactly these frames go out since the last SAYS
;;;;   (sees EVENT…)    exactly these sink calls happened since the last SEES
;;;;   (silent)         neither frames nor sink calls
;;;;
;;;; Events: (:headers ID PATH-OR-STATUS END-P)  (:data ID CONTENT END-P)  (:trailers ID FIELDS)
;;;;   (:reset ID CODE SOURCE)  (:closed ID)  (:writable ID)  (:goaway LAST-ID CODE)  (:settings)
;;;;   (:ping-ack N)  (:close CODE)
;;;;
;;;; DEFINE-DIALOGUE begins after the handshake and ends with (silent), so that nothing is
;;;; overlooked.

(in-package #:clgrpc.tests.dialogue)

(def-suite :clgrpc.dialogue :description "HTTP/2 conversations, frame by frame.")

(defstruct dialogue
  connection
  (peer (make-peer))
  (buffer (make-buffer))
  (streams (make-hash-table))
  (events '()))

(defvar *dialogue* nil "The dialogue that the words below speak in.")

(defun connection ()
  (dialogue-connection *dialogue*))

(defun find-stream (id)
  "The stream ID, also if it is closed."
  (or (gethash id (dialogue-streams *dialogue*)) (error "There never was a stream ~D." id)))

(defun event (&rest event)
  (push event (dialogue-events *dialogue*)))

(defun code-keyword (code)
  (name-of code *codes*))

(defun field-pairs (list)
  (let ((pairs '()))
    (hpack:do-fields (field list (nreverse pairs))
      (push (list (hpack:field-name-string field) (hpack:field-value-string field)) pairs))))

(defun recording-sink ()
  (flet ((id (stream) (h2:stream-id stream)))
    (h2:make-sink
     :on-output (lambda (connection) (declare (ignore connection)) (dialogue-buffer *dialogue*))
     :on-headers (lambda (stream list end-p)
                   (setf (gethash (id stream) (dialogue-streams *dialogue*)) stream)
                   (let ((field (or (hpack:find-field list ":path")
                                    (hpack:find-field list ":status"))))
                     (event :headers (id stream) (and field (hpack:field-value-string field))
                            end-p)))
     :on-data (lambda (stream octets start end end-p)
                (event :data (id stream) (content-form (subseq-octets octets start end)) end-p))
     :on-trailers (lambda (stream list) (event :trailers (id stream) (field-pairs list)))
     :on-reset (lambda (stream code source) (event :reset (id stream) (code-keyword code) source))
     :on-writable (lambda (stream) (event :writable (id stream)))
     :on-stream-closed (lambda (stream) (event :closed (id stream)))
     :on-goaway (fn (_connection last-id code _debug) (event :goaway last-id (code-keyword code)))
     :on-settings (lambda (connection) (declare (ignore connection)) (event :settings))
     :on-ping-ack (lambda (connection n) (declare (ignore connection)) (event :ping-ack n))
     :on-close (fn (_connection code _text) (event :close (code-keyword code))))))

;;; Words

(defun tells (octets)
  "Give OCTETS to the connection; return how many it consumed."
  (h2:receive-octets (connection) octets 0 (length octets) 0))

(defun hears (&rest forms)
  (let ((octets (frames-octets (dialogue-peer *dialogue*) forms)))
    (is (= (length octets) (tells octets)))))

(defun flush ()
  "Take what is to be sent, as an owner does; return the octets."
  (h2:write-queued (connection) 65536)
  (let ((buffer (dialogue-buffer *dialogue*)))
    (h2:give-output-back (connection))
    (prog1 (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))
      (clear-buffer buffer))))

(defun says (&rest forms)
  (is (equalp (mapcar #'canonical forms)
              (read-frame-forms (dialogue-peer *dialogue*) (flush)))))

(defun sees (&rest events)
  (is (equalp events (reverse (dialogue-events *dialogue*))))
  (setf (dialogue-events *dialogue*) '()))

(defun silent ()
  (says)
  (sees))

(defun respond (id fields &key end)
  "Send the header block FIELDS on the stream ID."
  (let ((stream (find-stream id)))
    (multiple-value-bind (encoder buffer) (h2:begin-headers stream)
      (loop for (name value) in (field-set fields)
            do (hpack:encode-field encoder buffer (hpack:string-field name value) :index)))
    (h2:end-headers stream end)))

(defun request (fields &key end)
  "Open a stream with the header block FIELDS; return its identifier."
  (let* ((stream (h2:open-stream (connection)))
         (id (h2:stream-id stream)))
    (setf (gethash id (dialogue-streams *dialogue*)) stream)
    (respond id fields :end end)
    id))

;;; Beginning

(defun begin-dialogue (role options)
  "A dialogue whose connection has been made and started at time 0 and heard nothing."
  (let* ((dialogue (make-dialogue))
         (*dialogue* dialogue))
    (setf (dialogue-connection dialogue)
          (h2:make-connection role (recording-sink) (apply #'make-options options)))
    (h2:start-connection (dialogue-connection dialogue) 0)
    dialogue))

(defparameter *preface*
  (joined (ascii-octets "PRI * HTTP/2.0") (octets-of 13 10 13 10) (ascii-octets "SM")
          (octets-of 13 10 13 10)))

(defun shake-hands ()
  "Let both sides exchange and acknowledge SETTINGS, and forget about it."
  (when (eq :server (h2:connection-role (connection)))
    (tells *preface*))
  (hears '(:settings) '(:settings-ack))
  (flush)
  (setf (dialogue-events *dialogue*) '()))

(defmacro define-dialogue (name (role &rest options) documentation &body body)
  "Define the test NAME: BODY is spoken with a connection in ROLE, :SERVER or :CLIENT, that has
OPTIONS of the options table, after the handshake unless :STRANGER is the first of them."
  (let ((stranger-p (eq :stranger (first options))))
    `(test ,name
       ,documentation
       (let ((*dialogue* (begin-dialogue ,role (list ,@(if stranger-p (rest options) options)))))
         ,@(unless stranger-p '((shake-hands)))
         ,@body
         (silent)))))
