;;;; A hub: what one loop of a server needs at hand. It owns the loop's links; only the loop touches
;;;; it.

(in-package #:clgrpc.server)

(defstruct (request (:copier nil))
  "What the headers of a request said, on its way to a call, by the routes of TABLE. FIELDS is its
metadata. A rejection is nil or why a request cannot become a call: (HTTP-status text) for peers
that do not speak gRPC, or (status text)."
  (table nil :type (or null route-table))
  (fields #() :type simple-vector)
  (route nil :type (or null server-route))
  (timeout nil :type (or null (unsigned-byte 62)))
  (incoming nil :type (or symbol wire:encoding)) ; as BEGIN-COMPRESSION has it
  (accepted '() :type list)             ; encodings
  (content-type nil :type boolean)
  (rejection nil :type list))

(declaim (sb-ext:freeze-type request))

(defstruct (hub (:include wire:endpoint) (:copier nil))
  "CALLS counts those that ended, OPEN those under way, of which there may be MAX-OPEN; ANSWERING
the octets of answers on their way to the loop (atomic); REQUEST is the scratch that headers are
read into."
  (server nil)
  (routes nil :type route-table)
  (encoding nil :type (or null wire:encoding)) ; of answers, if nobody says otherwise
  (links (make-array 16 :adjustable t :fill-pointer 0 :initial-element nil) :type vector)
  (calls 0 :type (unsigned-byte 62))
  (open 0 :type fixnum)
  (max-open 0 :type fixnum)
  (answering 0 :type sb-ext:word)
  (request (make-request) :type request)
  (roomless (make-ring) :type ring)     ; the places of calls that wait for room, see room.lisp
  (probe nil)                           ; the one of them that has begun without, or nil
  (room-timer nil :type (or null timer))
  (pool (http2:make-pool) :type http2:pool))

(declaim (sb-ext:freeze-type hub))

(defmethod print-object ((hub hub) stream)
  (print-unreadable-object (hub stream :type t)
    (format stream "~D links, ~D calls" (hub-link-count hub) (hub-calls hub))))

;;; The links, in no order: thousands may come and go at once

(defun hub-link-count (hub)
  (length (hub-links hub)))

(defun add-link (hub link)
  (setf (wire:link-place link) (vector-push-extend link (hub-links hub))))

(defun remove-link (hub link)
  (let* ((links (hub-links hub))
         (place (wire:link-place link)))
    ;; one that could not even be opened was never added
    (when (and (< place (length links)) (eq link (aref links place)))
      (let* ((end (1- (length links)))
             (last (aref links end)))
        (setf (aref links place) last
              (wire:link-place last) place
              (aref links end) nil
              (fill-pointer links) end)))))

(defun map-links (function hub)
  "Call FUNCTION with each link of HUB; it may end links."
  (map nil function (copy-seq (hub-links hub))))
