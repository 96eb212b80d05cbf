;;;; HTTP/2 sessions and how they are mutated: frame by frame, so that most of what comes out gets
;;;; past the frame reader, and now and then octet by octet.

(in-package #:clgrpc.tests.fuzz)

(defparameter *odd-numbers* #(0 1 2 3 4 5 7 9 100 16384 16385 65535 65536 #x7FFFFFFF #xFFFFFFFF)
  "Lengths, identifiers and window sizes at which something begins or ends.")

(defun session-sample (role forms)
  "A sample of what a peer of an end in ROLE sends: the frames FORMS, in the notation of the
dialogues. Its parts are the octets of each, the client's preface among them."
  (let* ((peer (dialogue:make-peer))
         (frames (mapcar (lambda (form) (dialogue:frame-octets peer form)) forms))
         (parts (if (eq role :server) (cons dialogue:*preface* frames) frames)))
    (make-sample :kind role :octets (join-octets parts) :parts parts)))

(defun join-octets (parts)
  (let ((octets (make-octets (reduce #'+ parts :key #'length)))
        (at 0))
    (declare (type index at))
    (dolist (part parts octets)
      (declare (type octets part))
      (setf at (copy-octets part 0 (length part) octets at)))))

(defun odd-number (most)
  (min most (if (chance-p 3) (below (1+ most)) (pick *odd-numbers*))))

(defun raw-frame (type flags id payload)
  (dialogue:raw-frame type flags id payload))

(defun random-frame ()
  "A frame of any type with a senseless payload."
  (raw-frame (below 11) (below 256) (odd-number #x7FFFFFFF) (random-octets (below 30))))

(defun change-header (frame)
  (let ((frame (copy-seq frame)))
    (one-of
      (setf (aref frame 3) (below 11))
      (setf (aref frame 4) (logxor (aref frame 4) (ash 1 (below 8))))
      (setf (aref frame 8) (logand #xFF (+ (aref frame 8) (if (chance-p 2) 2 -2))))
      (setf (u32be frame 5) (odd-number #xFFFFFFFF))
      (setf (aref frame 2) (logand #xFF (+ (aref frame 2) (- (below 9) 4)))))
    frame))

(defun change-payload (frame others)
  "FRAME with its payload changed, of the right length still."
  (let ((payload (mutate-octets (subseq frame 9) (vector (if (< 9 (length others))
                                                             (subseq others 9)
                                                             others)))))
    (raw-frame (aref frame 3) (aref frame 4) (logand #x7FFFFFFF (u32be frame 5)) payload)))

(defun set-window (frame)
  "FRAME, or if it has a number of four octets, with another."
  (if (member (length frame) '(13 15))
      (let ((frame (copy-seq frame)))
        (setf (u32be frame (- (length frame) 4)) (odd-number #xFFFFFFFF))
        frame)
      frame))

(defun split-block (frame)
  "FRAME, or if it is a HEADERS frame, that in two: with a CONTINUATION."
  (if (and (= 1 (aref frame 3)) (< 10 (length frame)))
      (let ((cut (+ 9 (below (- (length frame) 9))))
            (id (logand #x7FFFFFFF (u32be frame 5))))
        (join-octets (list (raw-frame 1 (logandc2 (aref frame 4) 4) id (subseq frame 9 cut))
                           (raw-frame 9 (logand (aref frame 4) 4) id (subseq frame cut)))))
      frame))

(defun mutate-frames (frames others)
  "FRAMES, a list, with one change; OTHERS, a vector of frames, is where some to put in come from."
  (let ((at (below (length frames)))
        (other (pick others)))
    (flet ((with (function)
             (let ((frame (nth at frames)))
               (if (or (< (length frame) 9) (= #x50 (aref frame 0))) ; the preface
                   frames
                   (append (subseq frames 0 at) (list (funcall function frame))
                           (nthcdr (1+ at) frames))))))
      (one-of
        (append (subseq frames 0 at) (nthcdr (1+ at) frames))
        (append (subseq frames 0 at) (list (nth at frames)) (nthcdr at frames))
        (append (subseq frames 0 at) (list other) (nthcdr at frames))
        (append (subseq frames 0 at) (list (random-frame)) (nthcdr at frames))
        (subseq frames 0 at)
        (let ((copy (copy-list frames)))
          (rotatef (nth at copy) (nth (below (length copy)) copy))
          copy)
        (with #'change-header)
        (with (lambda (frame) (change-payload frame other)))
        (with (lambda (frame) (change-payload frame other)))
        (with #'set-window)
        (with #'split-block)))))

(defun mutate-session (sample siblings)
  "SAMPLE, a session, with some changes."
  (let ((frames (sample-parts sample))
        (others (coerce (sample-parts (pick siblings)) 'simple-vector)))
    (loop repeat (times-to-mutate)
          while frames
          do (setf frames (mutate-frames frames others)))
    (let ((octets (join-octets frames)))
      (if (chance-p 8) (mutate-octets octets (vector (sample-octets (pick siblings)))) octets))))

(defmacro in-pieces ((octets start end) give)
  "Evaluate GIVE, which takes some of OCTETS from START to END and returns the position after them,
with END growing at random as octets come from a socket; until all are taken, or it takes none."
  (let ((before (gensym "BEFORE")))
    `(loop with ,start of-type index = 0
           for ,end of-type index = (min (length ,octets) (+ 1 (below 400)))
             then (min (length ,octets) (+ ,end 1 (below 400)))
           do (loop for ,before = ,start
                    do (setf ,start ,give)
                    until (or (= ,before ,start) (= ,start ,end)))
           until (= ,end (length ,octets)))))
