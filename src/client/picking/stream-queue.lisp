;;;; The calls of a channel that wait for a stream. Each attempt of a call that finds none has a
;;;; PLACE in one of these queues, by what it waits for:
;;;;
;;;;   CORE-WAITING        a stream of any server, if the picker is not choosy: then the oldest is
;;;;                       picked for, and while it finds no stream the others behind it are not
;;;;   SUBCHANNEL-WAITING  a stream of the server that a choosy picker has picked for it
;;;;   CORE-PATIENT        another picker: this one has none for it, or a failure that it outlasts
;;;;
;;;; So the end of a stream concerns as many calls as that frees streams for. Only when a picker
;;;; takes the place of another are all calls looked at, in the order in which they came.
;;;;
;;;; A call knows its places, the second and further ones by the first (SIBLING), and leaves them
;;;; when it ends. Everything here takes the same time however many calls wait, but for
;;;; WAITING-PLACES and what calls it.

(in-package #:clgrpc.client)

(defstruct (place (:include ring) (:constructor make-place (call number taker)) (:copier nil))
  "The place of an attempt of a call among those that wait for a stream."
  (call nil :type client-call :read-only t) ; the attempt is of
  (taker nil :type function :read-only t) ; what takes the stream, see core.lisp
  (number 0 :type (unsigned-byte 62) :read-only t) ; how many came to the channel before
  (server nil :type (or null subchannel)) ; that was picked for it last
  (sibling nil :type (or null place)))  ; another place of CALL

(declaim (sb-ext:freeze-type place))

(defmethod print-object ((place place) stream)
  (print-unreadable-object (place stream :type t)
    (format stream "~D~@[ for ~A~]" (place-number place) (place-server place))))

(defun choosy-p (core)
  "True if what the picker of CORE gives is for one call, so that those that wait hold up no
others."
  (let ((picker (core-picker core)))
    (and (picker-p picker) (picker-choosy picker))))

;;; Places in queues

(defun queued-p (place)
  "True if PLACE is in a queue."
  (not (eq place (place-after place))))

(defun count-waiting (core server change)
  "CHANGE more calls of CORE wait, for which SERVER, or nil, was picked."
  (incf (core-waiting-count core) change)
  (when (core-commons core) (incf (commons-waiting-count (core-commons core)) change))
  (if server
      (incf (subchannel-waiting-count server) change)
      (incf (core-unpicked-count core) change)))

(defun enter-queue (place queue server)
  "Put PLACE, which is in no queue, at the end of QUEUE; SERVER, or nil, was picked for its call."
  (let ((core (client-call-core (place-call place))))
    (setf (place-server place) server)
    (count-waiting core server 1)
    (unless (eq queue (core-waiting core)) (setf (core-scattered core) t))
    (enter-ring place queue)))

(defun quit-queue (place)
  "Take PLACE out of its queue."
  (quit-ring place)
  (count-waiting (client-call-core (place-call place)) (shiftf (place-server place) nil) -1))

(defun queue-for (core picked)
  "The queue that a call of CORE waits in for which PICKED was picked."
  (cond ((failure-p picked) (core-patient core))
        ((not (choosy-p core)) (core-waiting core))
        ((subchannel-p picked) (subchannel-waiting picked))
        (t (core-patient core))))

(defun move-place (place picked)
  "PICKED was picked for the call of PLACE, which waits for any stream: there, or where else that
makes it wait."
  (let* ((core (client-call-core (place-call place)))
         (queue (queue-for core picked))
         (server (and (subchannel-p picked) picked)))
    (cond ((eq queue (core-waiting core))
           (count-waiting core (shiftf (place-server place) server) -1)
           (count-waiting core server 1))
          (t (quit-queue place)
             (enter-queue place queue server)))))

;;; Places of calls

(defun add-place (call picked taker)
  "Give CALL, for which PICKED was picked, a new place for TAKER, and return that."
  (let* ((parts (ensure-client-parts call))
         (core (client-call-core call))
         (place (isolate-ring (make-place call (core-next-place core) taker))))
    (incf (core-next-place core))
    (setf (place-sibling place) (client-parts-place parts)
          (client-parts-place parts) place)
    (enter-queue place (queue-for core picked) (and (subchannel-p picked) picked))
    place))

(defun leave-place (place)
  "The call of PLACE does not wait there any more."
  (let ((parts (ensure-client-parts (place-call place))))
    (quit-queue place)
    (if (eq place (client-parts-place parts))
        (setf (client-parts-place parts) (place-sibling place))
        (loop for other = (client-parts-place parts) then (place-sibling other)
              when (eq place (place-sibling other))
                do (setf (place-sibling other) (place-sibling place))
                   (return)))
    nil))

(define-hot (leave-places :inline t) ((call client-call)) null
  "CALL waits for no stream any more."
  (let ((parts (call-client-parts call)))
    (loop while (and parts (client-parts-place parts))
          do (leave-place (client-parts-place parts)))
    nil))

;;; All that wait

(define-hot (waiting-p :inline t) ((core core)) boolean
  "True if calls of CORE wait for a stream."
  (plusp (core-waiting-count core)))

(defun waiting-places (core)
  "The places of CORE's calls, a list in the order in which they came."
  (if (core-scattered core)
      (sort (append (ring-list (core-waiting core))
                    (ring-list (core-patient core))
                    (loop for subchannel in (core-subchannels core)
                          nconc (ring-list (subchannel-waiting subchannel))))
            #'< :key #'place-number)
      (ring-list (core-waiting core))))

(defun waiting-calls (core)
  "The calls of CORE that wait for a stream, oldest first."
  (mapcar #'place-call (waiting-places core)))

(defun gather-places (core)
  "Put all places of CORE back into one queue, in the order in which they came."
  (when (core-scattered core)
    (let ((places (waiting-places core)))
      (mapc #'quit-queue places)
      (dolist (place places) (enter-queue place (core-waiting core) nil))
      (setf (core-scattered core) nil))))

(defun release-places (subchannel)
  "SUBCHANNEL is given up: who waits for a stream of it waits for another picker."
  (loop for place = (ring-first (subchannel-waiting subchannel))
        while place
        do (quit-queue place)
           (enter-queue place (core-patient (subchannel-core subchannel)) nil)))
