;;;; A real link and real calls on it, without a socket and with almost nothing above: an END whose
;;;; calls queue messages and note their end. The peer uses the forms of tests/support/world.

(in-package #:clgrpc.tests.wire)

(defstruct (station (:include wire:endpoint))
  "What all calls of a test share, and what the link's owner was told."
  (link nil)                            ; the last that was opened
  (calls '())                           ; newest first
  (told '()))                           ; events of the link, newest first

(defstruct (post-call (:include wire:wire-call))
  "A call as a server has it that does nothing by itself.")

(defvar *station* nil "The station of the test.")

(defmethod wire:link-event ((owner station) link event)
  (push (if (eq :ended event) (list :ended (wire::link-failure link)) event)
        (station-told owner)))

(defun told ()
  "The events of the owner since the last call."
  (reverse (shiftf (station-told *station*) '())))

(defun end-post (call status text ended-by)
  "The operation ABORT."
  (unless (rpc:call-status call)
    (wire:note-end call)
    (rpc:end-call call status :message text :ended-by ended-by)
    (when (wire::wire-call-stream call)
      (http2:reset-stream (wire::wire-call-stream call) http2:+cancel+))
    (rpc:schedule-callbacks call)))

(defun write-post-head (call)
  "The operation WRITE-HEAD."
  (let ((stream (wire::wire-call-stream call)))
    (multiple-value-bind (encoder buffer) (http2:begin-headers stream)
      (hpack:encode-field encoder buffer (hpack:string-field ":status" "200") :plain))
    (http2:end-headers stream nil)))

(defun post-stages (call)
  "The operation STAGES."
  (wire:list-stages call
                    (fn (_call total _headers _due)
                      (list (cons :receive 1000000000) (cons :queue 999)
                            (cons :send (- total 1000000000))))
                    0))

(rpc:define-transport-end **post-operations** (:server :like wire:**wire-operations**)
  :send-metadata #'list :reply #'list :finish #'list :abort #'end-post :stages #'post-stages
  :write-head #'write-post-head
  :deliver #'wire:deliver-streamed :half-close #'wire:half-close-streamed)

;;; The sink

(defun post-headers (stream list ended)
  (declare (ignore list))
  (let* ((link (http2:connection-user (http2:stream-connection stream)))
         (call (make-post-call :rpc-method (method:stub-method 'letters.post:exchange)
                               :operations **post-operations** :endpoint *station* :link link
                               :stream stream
                               :born-ns (loop:event-loop-now (wire::link-loop link)))))
    (incf (wire::link-calls link))
    (setf (http2:stream-user stream) call)
    (push call (station-calls *station*))
    (when ended (rpc:operate half-close call))))

(defun post-data (stream octets start end ended)
  (let ((call (http2:stream-user stream)))
    (wire:receive-data call octets start end)
    (when (and ended (null (rpc:call-status call))) (rpc:operate half-close call))))

(defun post-closed (stream)
  (let ((call (http2:stream-user stream)))
    (setf (wire::wire-call-stream call) nil)
    (wire:release-call call)
    (http2:release-stream stream)
    (decf (wire::link-calls (wire::wire-call-link call)))))

(defun post-sink ()
  (wire:link-sink :on-headers #'post-headers
                  :on-data #'post-data :on-stream-closed #'post-closed
                  :on-reset (fn (stream _code source)
                              (rpc:end-call (http2:stream-user stream) :cancelled
                                            :message (string-downcase source)))
                  :on-writable (lambda (stream)
                                 (let ((call (http2:stream-user stream)))
                                   (when call (wire:tell-writable call))))))

;;; Beginning

(defun call-with-station (function options shaken keywords)
  (let* ((memory:*world* (memory:start-world (memory:make-world)))
         (options (apply #'make-server-options options))
         (*station* (make-station :loop (memory:world-loop memory:*world*) :options options)))
    (memory:connects
     (lambda (transport)
       (setf (station-link *station*)
             (apply #'wire:open-link *station* (station-loop *station*) transport :server
                    (post-sink) options (http2:make-pool)
                    :account (station-account *station*) keywords))))
    (when shaken
      (memory:say memory:*world* memory:*end* dialogue:*preface*)
      (memory:hears '(:settings) '(:settings-ack))
      (memory:said))
    (funcall function (station-link *station*))))

(defmacro with-link ((link &key options (shaken t) keywords) &body body)
  "Evaluate BODY with LINK, with OPTIONS of a server's and KEYWORDS of OPEN-LINK; the peer has
shaken hands on it if SHAKEN."
  `(call-with-station (lambda (,link) (declare (ignorable ,link)) ,@body)
                      ,options ,shaken ,keywords))

(defun calls (&rest ids)
  "The peer begins calls on the streams IDS; return the last."
  (apply #'memory:hears (loop for id in ids collect `(:headers ,id :post)))
  (first (station-calls *station*)))

(defun letter (octets)
  "A letter of OCTETS, or of as many octets."
  (letters:make-letter :text (if (integerp octets) (make-octets octets) octets)))

(defun letter-octets (&rest sizes)
  "Letters of SIZES, each with its prefix, as one vector."
  (apply #'concatenate 'octets
         (loop for size in sizes
               for octets = (clgrpc.protobuf:serialize (letter size))
               collect (concatenate 'octets (octets-of 0)
                                    (let ((length (make-octets 4)))
                                      (setf (u32be length 0) (length octets))
                                      length)
                                    octets))))

(defun brings (id octets &rest options)
  "The peer sends OCTETS on the stream ID."
  (memory:hears `(:data ,id ,(coerce octets 'octets) ,@options)))

(defun received (call)
  "The sizes of all letters of CALL that wait for RECEIVE."
  (loop while (rpc:messages-wait-p call)
        collect (length (letters:letter-text (rpc:receive call)))))

(defun windows (frames)
  "The WINDOW_UPDATEs in FRAMES, without their kind."
  (loop for (kind . rest) in frames
        when (eq kind :window-update) collect rest))

(defun on-loop (function)
  (memory:call-in-world memory:*world* function))
