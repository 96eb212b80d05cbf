;;;; What channelz (gRFC A14) keeps of channels, subchannels, servers and sockets whether it is
;;;; served or not: a number for each, which is never used again, and of the first three the last
;;;; events. Numbers are given to connections, events are noted when something rare happens; calls
;;;; pay for neither.
;;;;
;;;; What has happened is in a CHANNEL-TRACE, one CHANNEL-EVENT for each event.
;;;;
;;;; A channel trace is changed by one store, so it can be read from any thread. The owner of a
;;;; channel trace keeps it for as long as it lives; a REGISTRY, by which channels and servers are
;;;; found, holds them weakly and forgets them when they are closed.

(in-package #:clgrpc.base)

(defconstant +most-channel-events+ 32
  "So many of the last events of a channel, a subchannel or a server are told.")

;;; Numbers

(defstruct (numbering (:copier nil))
  "The numbers that have been given."
  (last 0 :type sb-ext:word))           ; atomic

(declaim (sb-ext:freeze-type numbering))

(sb-ext:define-load-time-global **numbering** (make-numbering))

(defun new-number ()
  "A number from 1 on that nothing else in this process has had. From any thread."
  (1+ (sb-ext:atomic-incf (numbering-last **numbering**))))

;;; Events

(defstruct (channel-event (:copier nil))
  "Something that has happened to a channel, a subchannel or a server."
  (text "" :type string :read-only t)   ; for people
  (severity :info :type (member :info :warning :error) :read-only t) ; as channelz has it
  (ns 0 :type (unsigned-byte 62) :read-only t) ; when, by the clock of the channel trace's owner
  (child nil :type (or null (unsigned-byte 62)) :read-only t) ; the subchannel's number, or nil
  (child-name "" :type string :read-only t) ; what that is called
  (place 1 :type (unsigned-byte 62) :read-only t)) ; how many events there were with this one

(declaim (sb-ext:freeze-type channel-event))

(defmethod print-object ((event channel-event) stream)
  (print-unreadable-object (event stream :type t)
    (format stream "~D ~(~A~) ~A" (channel-event-place event) (channel-event-severity event)
            (channel-event-text event))))

(defstruct (channel-trace (:constructor make-channel-trace (born-ns &aux (number (new-number))))
                          (:copier nil))
  "A number, and the last events of what has it."
  (number 0 :type (unsigned-byte 62) :read-only t) ; see NEW-NUMBER
  (born-ns 0 :type (unsigned-byte 62) :read-only t) ; when it began
  (channel-events '() :type list))      ; newest first, up to twice as many as are told; atomic

(declaim (sb-ext:freeze-type channel-trace))

(document-functions
  make-channel-trace "A CHANNEL-TRACE of what begins at BORN-NS, with a number of its own."
  channel-trace-number "The number of CHANNEL-TRACE, see NEW-NUMBER."
  channel-trace-born-ns "When CHANNEL-TRACE began, by its owner's clock, in nanoseconds."
  channel-event-text "What CHANNEL-EVENT is, for people."
  channel-event-severity "How bad CHANNEL-EVENT is: :info, :warning or :error."
  channel-event-ns "When CHANNEL-EVENT was, by the clock of its channel trace's owner, in
nanoseconds."
  channel-event-child "The number of the subchannel that CHANNEL-EVENT is about, or nil."
  channel-event-child-name "What the subchannel is called that CHANNEL-EVENT is about, or \"\".")

(defmethod print-object ((channel-trace channel-trace) stream)
  (print-unreadable-object (channel-trace stream :type t)
    (format stream "~D, ~D events" (channel-trace-number channel-trace)
            (channel-trace-count channel-trace))))

(defun channel-trace-count (channel-trace)
  "How many events of CHANNEL-TRACE there have been."
  (let ((events (channel-trace-channel-events channel-trace)))
    (if events (channel-event-place (first events)) 0)))

(defun channel-events (channel-trace)
  "The last events of CHANNEL-TRACE, the oldest first. From any thread."
  (let ((events (channel-trace-channel-events channel-trace)))
    (reverse (subseq events 0 (min +most-channel-events+ (length events))))))

(defun note-channel-event (channel-trace now text &key (severity :info) child (child-name ""))
  "TEXT has happened at NOW to what CHANNEL-TRACE is of; CHILD is the number, CHILD-NAME the name of
the subchannel that it is about, if it is about one. From any thread."
  (loop
    (let* ((events (channel-trace-channel-events channel-trace))
           (place (if events (1+ (channel-event-place (first events))) 1))
           (event (make-channel-event :text text :severity severity :ns now :child child
                              :child-name child-name :place place))
           ;; cut only now and then, so that an event does not copy all others
           (kept (if (zerop (mod place +most-channel-events+))
                     (subseq events 0 (min (1- +most-channel-events+) (length events)))
                     events)))
      (when (eq events (sb-ext:compare-and-swap (channel-trace-channel-events channel-trace)
                                                events (cons event kept)))
        (return event)))))

;;; Registries

(defun make-registry ()
  "A table of what is to be found by GetTopChannels or GetServers, each as a key."
  (make-hash-table :test 'eq :weakness :key :synchronized t))

(defun enter-registry (object registry)
  "OBJECT is among what REGISTRY has. From any thread."
  (setf (gethash object registry) t))

(defun quit-registry (object registry)
  "OBJECT is not among what REGISTRY has any more. From any thread."
  (remhash object registry))

(defun registered (registry)
  "What REGISTRY has, in no order. From any thread."
  (sb-ext:with-locked-hash-table (registry)
    (loop for object being the hash-keys of registry collect object)))
