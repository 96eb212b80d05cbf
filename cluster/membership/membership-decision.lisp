;;;; What is decided about a membership, from what the store has and what was asked for alone.
;;;;
;;;; Generations: a member's is greater than the last that the store says was given to its name,
;;;; than that which it had itself, and than the revision of the store that was read before its
;;;; entry was written there. Of two that read the same one writes, since the other's transaction
;;;; finds something that it has not read.

(in-package #:clgrpc.cluster)

(defun next-generation (revision existing known)
  "The generation of a member that joins behind REVISION, which the store is at, where there is
EXISTING, a member of its name or nil, and who joins had KNOWN, 0 for none."
  (1+ (max revision known (if existing (member-generation existing) 0))))

(defun decide-join (existing asked if-taken &optional (known 0))
  "What becomes of it if ASKED, a member, is to join where there is EXISTING, a member of its name
or nil: :enter, its entry may be written in place of what is there; :same, it is this very member;
:taken; or :superseded, since EXISTING is later than KNOWN, the generation that the asking process
had, 0 for none. IF-TAKEN is :take-over or :refuse."
  (let ((same (and existing
                   (plusp (length (member-instance asked)))
                   (string= (member-instance asked) (member-instance existing)))))
    (cond ((null existing) :enter)
          ;; it joins again, and has not heard that it did so already
          (same (if (plusp known) :enter :same))
          ((< 0 known (member-generation existing)) :superseded)
          ((= known (member-generation existing)) :enter)
          ((eq :take-over if-taken) :enter)
          (t :taken))))

(defun decide-life (existing generation)
  "What a member of GENERATION is where there is EXISTING, a member of its name or nil: :alive,
:gone or :superseded."
  (cond ((null existing) :gone)
        ((= generation (member-generation existing)) :alive)
        (t :superseded)))

(defun require-life (existing name generation)
  "Signal NOT-A-MEMBER or SUPERSEDED unless EXISTING, a member or nil, is NAME's of GENERATION."
  (ecase (decide-life existing generation)
    (:alive existing)
    (:gone (refuse-membership 'not-a-member "there is no member ~A" (printable-text name)))
    (:superseded (refuse-membership 'superseded "~A is of generation ~D now, not ~D"
                                    (printable-text name) (member-generation existing)
                                    generation))))
