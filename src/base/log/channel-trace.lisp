;;;; The data that are always kept for channelz (gRFC A14): a number for each channel, subchannel,
;;;; server and socket, which no other object gets; and the last events of channels, subchannels and
;;;; servers. A connection gets its number when it is made, and only rare events are noted, so calls
;;;; cost nothing here.
;;;;
;;;; A CHANNEL-TRACE holds the events, each as a CHANNEL-EVENT.
;;;;
;;;; A channel trace is changed by one store, so it can be read from any thread. The owner of a
;;;; channel trace keeps the trace as long as the owner lives. A REGISTRY lists the channels or
;;;; servers of the process; it holds them weakly and drops them when they are closed.

(in-package #:clgrpc.base)

(defconstant +most-channel-events+ 32
  "The maximum number of events that channelz shows of a channel, a subchannel or a server. It shows
the latest events.")

;;; Numbers

(defstruct (numbering (:copier nil))
  "The state of the numbering, which is the last number that was given to an object."
  (last 0 :type sb-ext:word))           ; atomic

(declaim (sb-ext:freeze-type numbering))

(sb-ext:define-load-time-global **numbering** (make-numbering))

(defun new-number ()
  "Return a new number, 1 or above, which no other object in this process has had. From any thread."
  (1+ (sb-ext:atomic-incf (numbering-last **numbering**))))

;;; Events

(defstruct (channel-event (:copier nil))
  "An event of a channel, a subchannel or a server."
  (text "" :type string :read-only t)   ; the description, for people
  (severity :info :type (member :info :warning :error) :read-only t) ; the severity in channelz
  ;; when the event happened, by the clock of the channel trace's owner
  (ns 0 :type (unsigned-byte 62) :read-only t)
  (child nil :type (or null (unsigned-byte 62)) :read-only t) ; the subchannel's number, or nil
  (child-name "" :type string :read-only t) ; the child's name
  (place 1 :type (unsigned-byte 62) :read-only t)) ; the number of the trace's events up to this one

(declaim (sb-ext:freeze-type channel-event))

(define-printer (event channel-event)
  "~D ~(~A~) ~A" (channel-event-place event) (channel-event-severity event)
  (channel-event-text event))

(defstruct (channel-trace (:constructor make-channel-trace (born-ns &aux (number (new-number))))
                          (:copier nil))
  "The number of an object that channelz shows, and its last events."
  (number 0 :type (unsigned-byte 62) :read-only t) ; see NEW-NUMBER
  (born-ns 0 :type (unsigned-byte 62) :read-only t) ; when the object began
  (channel-events '() :type list))      ; newest first, up to twice as many as are shown; atomic

(declaim (sb-ext:freeze-type channel-trace))

(document-functions
  make-channel-trace "Return a CHANNEL-TRACE, with a new number, for an object that begins at
BORN-NS."
  channel-trace-number "The number of CHANNEL-TRACE, see NEW-NUMBER."
  channel-trace-born-ns "The time at which CHANNEL-TRACE began, by its owner's clock, in
nanoseconds."
  channel-event-text "The text of CHANNEL-EVENT, for people."
  channel-event-severity "The severity of CHANNEL-EVENT: :info, :warning or :error."
  channel-event-ns "The time of CHANNEL-EVENT, by the clock of its channel trace's owner, in
nanoseconds."
  channel-event-child "The number of the subchannel of which CHANNEL-EVENT reports, or nil if it
concerns no subchannel."
  channel-event-child-name "The name of the subchannel of which CHANNEL-EVENT reports, or \"\" if it
concerns no subchannel.")

(define-printer (channel-trace channel-trace)
  "~D, ~D events" (channel-trace-number channel-trace) (channel-trace-count channel-trace))

(defun channel-trace-count (channel-trace)
  "The number of events of CHANNEL-TRACE so far."
  (let ((events (channel-trace-channel-events channel-trace)))
    (if events (channel-event-place (first events)) 0)))

(defun channel-events (channel-trace)
  "The last events of CHANNEL-TRACE, the oldest first. From any thread."
  (let ((events (channel-trace-channel-events channel-trace)))
    (reverse (subseq events 0 (min +most-channel-events+ (length events))))))

(defun note-channel-event (channel-trace now text &key (severity :info) child (child-name ""))
  "Add an event with TEXT at NOW to CHANNEL-TRACE. If the event is about a subchannel, CHILD is its
number and CHILD-NAME its name. From any thread."
  (loop
    (let* ((events (channel-trace-channel-events channel-trace))
           (place (if events (1+ (channel-event-place (first events))) 1))
           (event (make-channel-event :text text :severity severity :ns now :child child
                              :child-name child-name :place place))
           ;; the list is cut only now and then, since a cut copies all events that are kept
           (kept (if (zerop (mod place +most-channel-events+))
                     (subseq events 0 (min (1- +most-channel-events+) (length events)))
                     events)))
      (when (eq events (sb-ext:compare-and-swap (channel-trace-channel-events channel-trace)
                                                events (cons event kept)))
        (return event)))))

;;; Registries

(defun make-registry ()
  "Return a weak table whose keys are the objects that GetTopChannels or GetServers lists."
  (make-hash-table :test 'eq :weakness :key :synchronized t))

(defun enter-registry (object registry)
  "Add OBJECT to REGISTRY. From any thread."
  (setf (gethash object registry) t))

(defun quit-registry (object registry)
  "Remove OBJECT from REGISTRY. From any thread."
  (remhash object registry))

(defun registered (registry)
  "The list of the objects in REGISTRY, in no order. From any thread."
  (sb-ext:with-locked-hash-table (registry)
    (loop for object being the hash-keys of registry collect object)))
